//! Man pages and shell completions, from the command line's own definition.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::arguments::Arguments;
use crate::output;

pub(crate) fn completions(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut command = Arguments::command();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "tollgate", &mut text);
    output::print(String::from_utf8_lossy(&text).trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// The page of the program to standard output, or one for it and each command into a folder.
pub(crate) fn man(folder: Option<&Path>) -> anyhow::Result<ExitCode> {
    let command = Arguments::command();
    match folder {
        None => {
            let mut text = Vec::new();
            Man::new(command).render(&mut text)?;
            output::print(String::from_utf8_lossy(&text).trim_end())?;
        }
        Some(folder) => {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
            clap_mangen::generate_to(command, folder)
                .with_context(|| format!("cannot write into {}", folder.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
