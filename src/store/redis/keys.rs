//! The keys of a batch: each once, however many checks touch it.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::Charge;

/// The different keys, each with the number it is sent under, from 0.
#[derive(Default)]
pub(super) struct Keys {
    /// One after another.
    text: String,
    pub(super) all: Vec<Key>,
    numbers: HashTable<u16>,
    hasher: DefaultHashBuilder,
}

pub(super) struct Key {
    /// Where it ends in the text; it starts where the one before ends.
    end: usize,
    /// The run that touches it last.
    pub(super) last_run: usize,
    /// How many checks do, and in how many runs.
    pub(super) checks: usize,
    pub(super) runs: usize,
}

impl Keys {
    /// The number of a charge's budget.
    pub(super) fn number(&mut self, prefix: &str, charge: &Charge<'_>) -> u16 {
        let Self { text, all, numbers, hasher } = self;
        let start = text.len();
        parts(prefix, charge).into_iter().for_each(|part| text.push_str(part));
        let hash = hasher.hash_one(&text[start..]);
        let key = |number: u16| get(text, all, number.into());
        if let Some(&number) = numbers.find(hash, |&number| key(number) == &text[start..]) {
            text.truncate(start);
            return number;
        }
        // A batch has fewer charges than that.
        let number = u16::try_from(all.len()).unwrap_or(u16::MAX);
        numbers.insert_unique(hash, number, |&number| hasher.hash_one(key(number)));
        all.push(Key { end: text.len(), last_run: usize::MAX, checks: 0, runs: 0 });
        number
    }

    /// How many checks of a charge's budget there are.
    pub(super) fn checks_of(&self, prefix: &str, charge: &Charge<'_>) -> usize {
        self.find(prefix, charge).map_or(0, |key| key.checks)
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.all.len()).map(|number| self.get(number))
    }

    pub(super) const fn bytes(&self) -> usize {
        self.text.len()
    }

    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.all.clear();
        self.numbers.clear();
    }

    fn find(&self, prefix: &str, charge: &Charge<'_>) -> Option<&Key> {
        let wanted = parts(prefix, charge).concat();
        let same = |&number: &u16| self.get(number.into()) == wanted;
        let number = self.numbers.find(self.hasher.hash_one(&*wanted), same)?;
        self.all.get(usize::from(*number))
    }

    /// The key, the kind and the name of a budget.
    pub(super) fn parts(&self, number: usize) -> (&str, &str, &str) {
        split(self.get(number)).unwrap_or_default()
    }

    pub(super) fn get(&self, number: usize) -> &str {
        get(&self.text, &self.all, number)
    }
}

/// The key, the kind and the name of a budget, as [`parts`] puts them together. A prefix has no
/// braces either.
fn split(text: &str) -> Option<(&str, &str, &str)> {
    let (_, rest) = text.split_once('{')?;
    let (key, rest) = rest.split_once("}:")?;
    let (kind, name) = rest.split_once(':')?;
    Some((key, kind, name))
}

fn get<'a>(text: &'a str, all: &[Key], number: usize) -> &'a str {
    let start = if number == 0 { 0 } else { all[number - 1].end };
    &text[start..all[number].end]
}

/// `prefix:{key}:kind:name`, under which a budget is kept. Encoded keys have no braces, so the
/// braces are the key's own, and Redis Cluster keeps all limits of one key in one slot. A kind is
/// one letter; the name comes last, so it may hold anything.
fn parts<'a>(prefix: &'a str, charge: &'a Charge<'_>) -> [&'a str; 7] {
    [prefix, ":{", charge.key.as_str(), "}:", charge.limit.kind(), ":", charge.limit.name()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Key, Limit, Quota};

    #[test]
    fn budget_is_read_back_from_its_key() {
        let keys = [Key::new("a{b}:c"), Key::from_parts(["a", "b"]), Key::global()];
        for name in ["api", "}:b:{"] {
            let limit = Limit::gcra(name, Quota::per_second(1)).unwrap();
            for key in &keys {
                let text = parts("tollgate:x", &limit.charge(key, 1)).concat();
                assert_eq!(split(&text), Some((key.as_str(), limit.kind(), name)));
            }
        }
    }
}
