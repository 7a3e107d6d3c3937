//! Draws the pictures of the documentation: `make plots`.
//!
//! Every picture shows decisions of the embedded store, which Redis decides the same way, in
//! virtual time. So the same files result on every machine, and a test tells when they are stale.

mod pictures;
mod requests;
mod run;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use tollgate_charts::Chart;

/// What draws a picture.
type Draw = fn() -> Result<Chart, Box<dyn Error>>;

/// All pictures, by the names of their files.
const PICTURES: [(&str, Draw); 7] = [
    ("algorithms", pictures::algorithms::draw),
    ("window_end", pictures::window_end::draw),
    ("even_output", pictures::even_output::draw),
    ("window_or_log", pictures::window_or_log::draw),
    ("burst", pictures::burst::draw),
    ("outage", pictures::outage::draw),
    ("calendar", pictures::calendar::draw),
];

/// The pictures of the README, with their files and media types. The benchmarks draw one, and a
/// browser takes another.
const README: [(&str, &str, &str); 3] = [
    ("algorithms", "algorithms.svg", "svg+xml"),
    ("benchmark", "benchmark.svg", "svg+xml"),
    ("playground", "../../../docs/playground-light.png", "png"),
];

fn file_of(name: &str) -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    repository.join("src/guide/pictures").join(name)
}

/// The text of each file. The README's pictures come last, as they are made of others.
fn files() -> impl Iterator<Item = Result<(String, String), Box<dyn Error>>> {
    let pictures = PICTURES.iter().map(|(name, draw)| {
        let picture = draw()?;
        Ok((format!("{name}.svg"), format!("{picture}\n")))
    });
    pictures.chain([links()])
}

/// The README's pictures as links that hold them, for its copy in the documentation, where a
/// relative link leads nowhere.
fn links() -> Result<(String, String), Box<dyn Error>> {
    let links: Result<String, std::io::Error> = README
        .iter()
        .map(|(name, file, kind)| {
            let picture = BASE64.encode(fs::read(file_of(file))?);
            Ok(format!(
                "[picture: {name}]: data:image/{kind};base64,{picture}\n"
            ))
        })
        .collect();
    Ok(("readme.md".to_owned(), links?))
}

fn main() -> Result<(), Box<dyn Error>> {
    for file in files() {
        let (name, text) = file?;
        fs::write(file_of(&name), text)?;
        println!("src/guide/pictures/{name}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_in_the_repository_are_current() {
        // The benchmarks draw these.
        let mut names = ["benchmark.svg", "overshoot.svg"]
            .map(str::to_owned)
            .to_vec();
        for file in files() {
            let (name, text) = file.unwrap();
            let current = fs::read_to_string(file_of(&name)).unwrap_or_default();
            assert!(current == text, "{name} is stale: run `make plots`");
            names.push(name);
        }
        let folder = fs::read_dir(file_of("")).unwrap();
        for file in folder {
            let name = file.unwrap().file_name().into_string().unwrap();
            assert!(
                names.contains(&name),
                "{name} is not one of this program's files"
            );
        }
    }
}
