//! The script that decides, and its name on the server.

use std::sync::LazyLock;

/// An algorithm's file as the body of a function of its name.
macro_rules! function {
    ($name:literal) => {
        concat!(
            "local function ",
            $name,
            "()\n",
            include_str!(concat!("../../../scripts/", $name, ".lua")),
            "end\n"
        )
    };
}

/// The Lua halves of the algorithms, and the one that applies them. To add an algorithm is to add
/// a line here, and its number in `batch.lua` and [`wire`](super::wire).
const SOURCE: &str = concat!(
    include_str!("../../../scripts/head.lua"),
    function!("fixed_window"),
    function!("sliding_window"),
    function!("sliding_log"),
    function!("bucket"),
    function!("token_bucket"),
    function!("leaky_bucket"),
    function!("gcra"),
    include_str!("../../../scripts/batch.lua"),
);

/// The source as the server gets it: comments are for the reader of the repository.
static CODE: LazyLock<String> = LazyLock::new(|| {
    let code = SOURCE.lines().filter(|line| !line.trim_start().starts_with("--"));
    code.map(str::trim_start).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
});

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
