//! Names that requests bring, of which a few are kept, and read without a lock.

use arc_swap::ArcSwap;

/// Adds a name to a list of at most so many. Returns whether it is new.
pub(super) fn add_name(list: &ArcSwap<Vec<Box<str>>>, name: &str, most: usize) -> bool {
    let is_new = |names: &[Box<str>]| names.len() < most && !has_name(names, name);
    if !is_new(&list.load()) {
        return false;
    }
    let before = list.rcu(|names| {
        let mut more = (**names).clone();
        if is_new(&more) {
            more.push(name.into());
        }
        more
    });
    is_new(&before)
}

pub(super) fn has_name(names: &[Box<str>], name: &str) -> bool {
    names.iter().any(|known| **known == *name)
}
