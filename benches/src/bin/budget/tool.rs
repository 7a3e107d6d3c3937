//! Running this program under a tool.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs, process};

use crate::Failure;
use crate::requests::Case;

/// The first argument of a run that is watched.
pub const REQUESTS: &str = "requests";

/// The runs of one case.
pub struct Run {
    pub case: Case,
    url: String,
}

impl Run {
    pub fn new(case: Case, url: String) -> Self {
        Self { case, url }
    }

    /// Runs this program with so many requests under a tool, and returns what both print.
    pub fn under(&self, tool: &[&str], requests: usize) -> Result<Output, Failure> {
        let program = env::current_exe()?;
        let mut command = Command::new(tool[0]);
        command.args(&tool[1..]).arg(program).args([
            REQUESTS,
            self.case.name(),
            &requests.to_string(),
            &self.url,
        ]);
        output(&mut command)
    }
}

/// Runs a command to its end, which has to be a success.
pub fn output(command: &mut Command) -> Result<Output, Failure> {
    let tool = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("there is no `{tool}`: install it with `make {tool}`"),
        _ => format!("`{tool}` does not start: {error}"),
    })?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{tool}` failed: {message}").into());
    }
    Ok(output)
}

/// A file for what a tool writes, removed when dropped.
pub struct OutputFile(PathBuf);

impl OutputFile {
    pub fn new(tool: &str) -> Self {
        let name = format!("tollgate-budget-{}-{tool}", process::id());
        Self(env::temp_dir().join(name))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn read(&self) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(&self.0)?).into_owned())
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        // A tool that failed has not written it.
        let _ = fs::remove_file(&self.0);
    }
}
