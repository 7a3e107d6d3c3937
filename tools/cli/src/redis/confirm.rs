//! Questions before something is changed.

use std::io::{IsTerminal, Write, stderr, stdin};

use anyhow::bail;

/// Asks on the terminal. Anything but `y` or `yes` is a no.
pub(super) fn confirmed(question: &str, yes: bool) -> anyhow::Result<bool> {
    if yes {
        return Ok(true);
    }
    if !stdin().is_terminal() {
        bail!("{question} There is no terminal to ask on: give --yes");
    }
    write!(stderr(), "{question} [y/N] ")?;
    stderr().flush()?;
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
