//! The script that decides, and its name on the server.

use std::collections::HashMap;
use std::str::Split;
use std::sync::LazyLock;

/// A file as the body of a function of its name.
macro_rules! function {
    ($name:literal) => {
        concat!("local function ", $name, "(...)\n", file!($name), "end\n")
    };
}

/// A file, or several as one, as what `algorithm` does for a number.
macro_rules! algorithm {
    ($number:literal, $($name:literal),+) => {
        concat!("if number == ", $number, " then\n", $(file!($name)),+, "end\n")
    };
}

macro_rules! file {
    ($name:literal) => {
        include_str!(concat!("../../../scripts/", $name, ".lua"))
    };
}

/// The Lua halves of the algorithms, and what applies them. To add an algorithm is to add a line
/// here, and its number in [`wire`](super::wire).
const SOURCE: &str = concat!(
    file!("head"),
    function!("bucket"),
    "local function algorithm(number, ...)\n",
    algorithm!(1, "fixed_window", "rotation"),
    algorithm!(2, "sliding_window", "rotation"),
    algorithm!(3, "sliding_log", "log_machine"),
    algorithm!(4, "token_bucket"),
    algorithm!(5, "leaky_bucket"),
    algorithm!(6, "gcra"),
    "end\n",
    function!("general"),
    file!("batch"),
);

/// Runs every command that the script needs.
pub(super) const PROBE: &str = file!("probe");

/// The source as the server gets it.
static CODE: LazyLock<String> = LazyLock::new(|| assemble(SOURCE));

static HASH: LazyLock<String> =
    LazyLock::new(|| sha1_smol::Sha1::from(CODE.as_bytes()).digest().to_string());

/// What `SCRIPT LOAD` gets.
pub(super) fn code() -> &'static str {
    &CODE
}

/// What `EVALSHA` gets: the SHA-1 that the server knows the code by.
pub(super) fn hash() -> &'static str {
    &HASH
}

/// Leaves out what is for the reader of the repository, comments, and puts constants in place: Lua
/// 5.1 has none, and each of its functions pays anew for each local of the surroundings that it
/// uses, with every call of the script. A constant is a local with a name in capitals, on a line of
/// its own, perhaps with others.
fn assemble(source: &str) -> String {
    let mut constants = HashMap::new();
    let mut code = String::new();
    let lines = source.lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with("--")) {
        if let Some((names, values)) = definitions(line) {
            let in_place = |value| match with_constants(value, &constants) {
                literal if !literal.contains(' ') => literal,
                expression => format!("({expression})"),
            };
            let new: Vec<_> = names.zip(values.map(in_place)).collect();
            constants.extend(new);
        } else {
            code.push_str(&with_constants(line, &constants));
            code.push('\n');
        }
    }
    code
}

/// The constants that a line defines, if it does nothing else.
fn definitions(line: &str) -> Option<(Split<'_, &'static str>, Split<'_, &'static str>)> {
    let (names, values) = line.strip_prefix("local ")?.split_once(" = ")?;
    let (names, values) = (names.split(", "), values.split(", "));
    let in_capitals = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_uppercase())
            && name.chars().all(|it| it.is_ascii_uppercase() || it.is_ascii_digit() || it == '_')
    };
    let only_constants =
        names.clone().all(in_capitals) && names.clone().count() == values.clone().count();
    only_constants.then_some((names, values))
}

/// The line with each name of a constant, outside of strings, replaced by its value.
fn with_constants(line: &str, constants: &HashMap<&str, String>) -> String {
    let mut replaced = String::with_capacity(line.len());
    for (index, part) in line.split('\'').enumerate() {
        if index > 0 {
            replaced.push('\'');
        }
        if index % 2 == 1 {
            replaced.push_str(part);
            continue;
        }
        let mut rest = part;
        while let Some(start) = rest.find(is_of_name) {
            let (before, from) = rest.split_at(start);
            let end = from.find(|it| !is_of_name(it)).unwrap_or(from.len());
            let (name, after) = from.split_at(end);
            replaced.push_str(before);
            replaced.push_str(constants.get(name).map_or(name, String::as_str));
            rest = after;
        }
        replaced.push_str(rest);
    }
    replaced
}

fn is_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_stand_in_place_and_comments_are_gone() {
        let source = "-- Says.\nlocal KIND, SIZE = 'K', 2 ^ 3\nlocal ALL = {a, b}\n\n  \
                      return SIZE, KIND, 'SIZE', SIZES, ALL -- not seen\n";
        let code = "local ALL = {a, b}\nreturn (2 ^ 3), 'K', 'SIZE', SIZES, ALL -- not seen\n";
        assert_eq!(assemble(source), code);
    }

    #[test]
    fn a_later_constant_of_the_same_name_is_the_one_that_counts() {
        let source = "local KIND = 1\nf(KIND)\nlocal KIND, NEXT = 2, KIND + 1\nf(KIND, NEXT)";
        assert_eq!(assemble(source), "f(1)\nf(2, (1 + 1))\n");
    }

    #[test]
    fn no_name_in_capitals_is_left_that_only_the_reader_knows() {
        let known = ["KEYS", "ARGV"];
        let code = code().split('\'').step_by(2).collect::<String>();
        let names = code.split(|it| !is_of_name(it)).filter(|word| word.len() > 1);
        let in_capitals = |word: &&str| word.chars().all(|it| it.is_ascii_uppercase() || it == '_');
        let left: Vec<_> = names.filter(in_capitals).filter(|it| !known.contains(it)).collect();
        assert_eq!(left, Vec::<&str>::new());
    }
}
