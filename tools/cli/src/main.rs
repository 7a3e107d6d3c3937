//! `tollgate`: a tool for operators. `tollgate help` lists its commands.

mod arguments;
mod check_config;
mod duration;
mod generate;
mod limit;
mod output;
mod placeholders;
mod redis;
mod replay;
mod table;

use std::process::ExitCode;

use clap::Parser;

use self::arguments::{Arguments, Command};

fn main() -> ExitCode {
    // Of all connections by TLS. It fails only if there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match run(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            output::note(&format!("tollgate: {}", output::explained(&error)));
            ExitCode::from(2)
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match command {
            Command::Replay(arguments) => replay::run(*arguments).await,
            Command::Keys(arguments) => redis::keys::run(arguments).await,
            Command::Show(arguments) => redis::show::run(arguments).await,
            Command::Top(arguments) => redis::top::run(arguments).await,
            Command::Usage(arguments) => redis::usage::run(arguments).await,
            Command::Peek(arguments) => redis::peek::run(arguments).await,
            Command::Reset(arguments) => redis::reset::run(arguments).await,
            Command::Block(arguments) => redis::block::run(arguments).await,
            Command::Unblock(arguments) => redis::block::end(arguments).await,
            Command::Override(arguments) => redis::overrides::run(arguments).await,
            Command::Overrides(arguments) => redis::overrides::list(arguments).await,
            Command::Copy(arguments) => redis::copy::run(arguments).await,
            Command::Doctor(arguments) => redis::doctor::run(arguments).await,
            Command::CheckConfig(arguments) => check_config::run(&arguments),
            Command::Completions { shell } => generate::completions(shell),
            Command::Man { folder } => generate::man(folder.as_deref()),
        }
    })
}
