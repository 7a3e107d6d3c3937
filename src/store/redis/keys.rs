//! The keys of a batch, each once.

use std::fmt::Write as _;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::model::Budget;

/// The letter that the offences of a budget's key have more.
pub(super) const OFFENCES: &str = "x";

/// The letter that the payments to a budget have more. Behind the name stands the payer.
const PAYMENTS: &str = "o";

/// The distinct keys, numbered from 0.
#[derive(Default)]
pub(super) struct Keys {
    /// All keys, joined.
    text: String,
    pub(super) all: Vec<RedisKey>,
    numbers: HashTable<u16>,
    hasher: DefaultHashBuilder,
}

pub(super) struct RedisKey {
    /// Its end in the text. It starts at the end of the one before.
    end: usize,
    /// The last run that touches it.
    pub(super) last_run: usize,
    /// The number of its checks, and of their runs.
    pub(super) checks: usize,
    pub(super) runs: usize,
}

impl Keys {
    /// The number of a budget's key. `more` is empty, or [`OFFENCES`] for the key's offences.
    pub(super) fn number(&mut self, prefix: &str, budget: &Budget, more: &str) -> u16 {
        let start = self.text.len();
        append_key(&mut self.text, prefix, budget, more);
        self.number_from(start)
    }

    /// The number of the key of a payer's last payment to a budget.
    pub(super) fn number_of_payer(&mut self, prefix: &str, budget: &Budget, payer: [u8; 8]) -> u16 {
        let start = self.text.len();
        append_key(&mut self.text, prefix, budget, PAYMENTS);
        // Writing to a string does not fail.
        let _ = write!(self.text, ":{:016x}", u64::from_be_bytes(payer));
        self.number_from(start)
    }

    /// The number of the key that starts there in the text, which is added if it is new.
    fn number_from(&mut self, start: usize) -> u16 {
        let Self {
            text,
            all,
            numbers,
            hasher,
        } = self;
        let hash = hasher.hash_one(&text[start..]);
        let key = |number: u16| get(text, all, number.into());
        if let Some(&number) = numbers.find(hash, |&number| key(number) == &text[start..]) {
            text.truncate(start);
            return number;
        }
        // A batch has fewer checks than that.
        let number = u16::try_from(all.len()).unwrap_or(u16::MAX);
        numbers.insert_unique(hash, number, |&number| hasher.hash_one(key(number)));
        all.push(RedisKey {
            end: text.len(),
            last_run: usize::MAX,
            checks: 0,
            runs: 0,
        });
        number
    }

    /// The number of checks of a budget.
    pub(super) fn checks_of(&self, prefix: &str, budget: &Budget) -> usize {
        let mut wanted = String::new();
        append_key(&mut wanted, prefix, budget, "");
        let same = |&number: &u16| self.get(number.into()) == wanted;
        let number = self.numbers.find(self.hasher.hash_one(&*wanted), same);
        number.map_or(0, |&number| self.all[usize::from(number)].checks)
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

    pub(super) fn get(&self, number: usize) -> &str {
        get(&self.text, &self.all, number)
    }
}

fn get<'a>(text: &'a str, all: &[RedisKey], number: usize) -> &'a str {
    let start = if number == 0 { 0 } else { all[number - 1].end };
    &text[start..all[number].end]
}

/// Appends the key of a budget in Redis: `prefix:{key}:kind:name`. An encoded key has no braces, so
/// they are a hash tag, and Redis keeps all limits of one key in one slot. On a cluster, another
/// tag stands before it, which is the tag of the key's partition. A kind is one letter, and the
/// offences of a budget's key have one letter more. The name comes last, so it may contain colons.
#[inline]
pub(super) fn append_key(text: &mut String, prefix: &str, budget: &Budget, more: &str) {
    text.push_str(prefix);
    text.push('{');
    text.push_str(budget.key().as_str());
    text.push_str("}:");
    text.push_str(budget.limit().kind());
    text.push_str(more);
    text.push(':');
    text.push_str(budget.limit().name());
}
