//! The arrows of ARCHITECTURE.md: which file may import which. And the width of lines, which
//! `rustfmt` does not check in comments and strings.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, File, ItemMod, ItemUse, Meta, UseTree, Visibility};

/// A path, by its segments.
type Segments = Vec<String>;

/// The files of the library, by the path of their module. That of `lib.rs` is empty.
struct Modules(BTreeMap<Segments, Module>);

#[derive(Default)]
struct Module {
    /// The imports, as paths from the root of the crate. The import of another crate begins with
    /// its name.
    imports: BTreeSet<Segments>,
    /// The names that are exported again, and their origins.
    exports: BTreeMap<String, Segments>,
}

impl Modules {
    fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = Vec::new();
        collect(&root, &mut files);
        let paths = files.iter().map(|file| module_of(&root, file));
        let known: BTreeSet<Segments> = paths.clone().collect();
        let modules = paths.zip(&files).map(|(path, file)| {
            let text = fs::read_to_string(file).unwrap();
            let parsed = syn::parse_file(&text).unwrap();
            let module = read_module(&path, &parsed, &known);
            (path, module)
        });
        Self(modules.collect())
    }

    /// The module that has what a path names: the last module on the path, or where it exports the
    /// name from.
    fn origin(&self, path: &[String]) -> Option<&Segments> {
        let mut path = path.to_vec();
        // An export of an export, and so on.
        for _ in 0..self.0.len() {
            let length = (0..=path.len()).rev();
            let (found, module) = length
                .filter(|length| *length > 0)
                .find_map(|length| self.0.get_key_value(&path[..length]))?;
            let export = path
                .get(found.len())
                .and_then(|name| module.exports.get(name));
            match export {
                Some(origin) if *origin != path => path = origin.clone(),
                _ => return Some(found),
            }
        }
        None
    }

    /// The files that each file imports. Those of the modules that it is in do not count.
    fn arrows(&self) -> Arrows<'_> {
        let arrows = self.0.iter().map(|(from, module)| {
            let origins = module.imports.iter().filter_map(|path| self.origin(path));
            let others = origins.filter(|origin| !from.starts_with(origin));
            (from, others.collect())
        });
        arrows.collect()
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn module_of(root: &Path, file: &Path) -> Segments {
    let path = file.strip_prefix(root).unwrap().with_extension("");
    let segments = path.iter().map(|part| part.to_str().unwrap().to_owned());
    segments
        .filter(|part| part != "mod" && part != "lib")
        .collect()
}

fn read_module(path: &[String], file: &File, known: &BTreeSet<Segments>) -> Module {
    let mut reader = Reader {
        path,
        known,
        module: Module::default(),
    };
    reader.visit_file(file);
    reader.module
}

struct Reader<'a> {
    path: &'a [String],
    known: &'a BTreeSet<Segments>,
    module: Module,
}

impl Reader<'_> {
    /// The path from the root of the crate, or as it is if it begins with the name of another
    /// crate.
    fn resolve(&self, path: Segments) -> Segments {
        let mut base = self.path.to_vec();
        let mut rest = path.iter().peekable();
        match path.first().map(String::as_str) {
            Some("crate") => base.clear(),
            Some("self" | "super") => {}
            Some(first) => {
                base.push(first.to_owned());
                if !self.known.contains(&base) {
                    return path;
                }
                base.pop();
            }
            None => return path,
        }
        while let Some(part) =
            rest.next_if(|part| matches!(part.as_str(), "crate" | "self" | "super"))
        {
            if part == "super" {
                base.pop();
            }
        }
        base.extend(rest.cloned());
        base
    }

    fn add_tree(&mut self, prefix: &[String], tree: &UseTree, is_export: bool) {
        let with = |name: String| [prefix, &[name]].concat();
        match tree {
            UseTree::Path(path) => {
                self.add_tree(&with(path.ident.to_string()), &path.tree, is_export);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_tree(prefix, tree, is_export);
                }
            }
            UseTree::Name(name) if name.ident == "self" => self.add(prefix.to_vec(), "", false),
            UseTree::Name(name) => {
                let name = name.ident.to_string();
                self.add(with(name.clone()), &name, is_export);
            }
            UseTree::Rename(renamed) => {
                let path = with(renamed.ident.to_string());
                self.add(path, &renamed.rename.to_string(), is_export);
            }
            UseTree::Glob(_) => self.add(prefix.to_vec(), "", false),
        }
    }

    fn add(&mut self, path: Segments, name: &str, is_export: bool) {
        let path = self.resolve(path);
        if is_export {
            self.module.exports.insert(name.to_owned(), path.clone());
        }
        self.module.imports.insert(path);
    }
}

impl Visit<'_> for Reader<'_> {
    fn visit_item_use(&mut self, item: &ItemUse) {
        let is_export = !matches!(item.vis, Visibility::Inherited);
        self.add_tree(&[], &item.tree, is_export);
    }

    fn visit_item_mod(&mut self, item: &ItemMod) {
        if !item.attrs.iter().any(is_of_tests) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let segments: Segments = path
            .segments
            .iter()
            .map(|part| part.ident.to_string())
            .collect();
        if matches!(segments[0].as_str(), "crate" | "self" | "super") && segments.len() > 1 {
            self.add(segments, "", false);
        }
        visit::visit_path(self, path);
    }
}

fn is_of_tests(attribute: &Attribute) -> bool {
    match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string().contains("test"),
        _ => false,
    }
}

fn written(path: &[String]) -> String {
    if path.is_empty() {
        return "lib.rs".to_owned();
    }
    path.join("/")
}

type Arrows<'a> = BTreeMap<&'a Segments, BTreeSet<&'a Segments>>;

/// The files that a file reaches along the arrows.
fn reached<'a>(from: &'a Segments, arrows: &Arrows<'a>) -> BTreeSet<&'a Segments> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from];
    while let Some(next) = left.pop() {
        for file in &arrows[next] {
            if reached.insert(*file) {
                left.push(file);
            }
        }
    }
    reached
}

/// The files that a file reaches, and that reach it.
fn circle_of<'a>(start: &'a Segments, arrows: &Arrows<'a>) -> BTreeSet<&'a Segments> {
    let mut circle = reached(start, arrows);
    circle.retain(|file| reached(file, arrows).contains(start));
    circle
}

#[test]
fn no_files_import_each_other() {
    let modules = Modules::read();
    let arrows = modules.arrows();
    assert!(arrows.len() > 200, "{} files", arrows.len());
    let circles: BTreeSet<Vec<String>> = arrows
        .keys()
        // The root exports what users see.
        .filter(|file| !file.is_empty())
        .map(|file| circle_of(file, &arrows))
        .filter(|circle| !circle.is_empty())
        .map(|circle| circle.into_iter().map(|file| written(file)).collect())
        .collect();
    assert!(circles.is_empty(), "these import each other: {circles:#?}");
}

/// The rooms that each room knows, besides itself.
const KNOWN: [(&str, &[&str]); 8] = [
    ("units", &[]),
    ("algorithm", &["units"]),
    ("model", &["units", "algorithm"]),
    ("telemetry", &["units", "model"]),
    (
        "configuration",
        &["units", "algorithm", "model", "telemetry"],
    ),
    ("store", &["units", "algorithm", "model", "telemetry"]),
    (
        "limiter",
        &["units", "algorithm", "model", "store", "telemetry"],
    ),
    (
        "http",
        &[
            "units",
            "algorithm",
            "model",
            "store",
            "limiter",
            "telemetry",
            "configuration",
        ],
    ),
];

/// The exceptions: a test of stores that runs a limiter, and limits and overrides in Redis.
const EXCEPTIONS: [(&str, &str); 3] = [
    ("store/conformance", "limiter"),
    ("store/redis/source", "configuration"),
    ("store/redis/overrides", "configuration"),
];

#[test]
fn arrows_between_rooms_run_one_way() {
    let modules = Modules::read();
    let arrows = modules.arrows();
    let mut wrong = Vec::new();
    for (room, known) in KNOWN {
        let files = arrows
            .iter()
            .filter(|(from, _)| from.first().is_some_and(|it| it == room));
        for (from, to) in files.flat_map(|(from, to)| to.iter().map(move |to| (from, to))) {
            let Some(other) = to.first() else { continue };
            let is_exception = EXCEPTIONS.contains(&(&written(from), other));
            if other != room && !known.contains(&other.as_str()) && !is_exception {
                wrong.push(format!("{} imports {}", written(from), written(to)));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn crates_for_http_and_for_redis_are_named_in_one_room_each() {
    let modules = Modules::read();
    let mut wrong = Vec::new();
    for (from, module) in &modules.0 {
        let from = written(from);
        for path in module
            .imports
            .iter()
            .filter(|path| modules.origin(path).is_none())
        {
            let room = match path[0].as_str() {
                "axum" | "tonic" | "tower_layer" | "tower_service" | "http_body" => "http",
                "redis" | "deadpool_redis" | "rustls" => "store/redis",
                _ => continue,
            };
            if !from.starts_with(room) {
                wrong.push(format!("{from} names {}", path.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn http_does_not_know_redis() {
    let modules = Modules::read();
    let arrows = modules.arrows();
    let of_http = arrows
        .iter()
        .filter(|(from, _)| from.first().is_some_and(|it| it == "http"));
    let wrong: Vec<String> = of_http
        .flat_map(|(from, to)| to.iter().map(move |to| (from, written(to))))
        .filter(|(_, to)| to.starts_with("store/redis"))
        .map(|(from, to)| format!("{} imports {to}", written(from)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn lines_have_at_most_100_columns() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in (1..).zip(text.lines()) {
            // A row of a table in documentation has to be one line.
            let is_row = line
                .trim_start()
                .trim_start_matches(['/', '!', ' '])
                .starts_with('|');
            let place = format!("{}:{number}", file.display());
            assert!(is_row || line.chars().count() <= 100, "{place}: {line}");
        }
    }
}
