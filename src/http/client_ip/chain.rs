//! The chain of addresses that proxies append to, from the nearest proxy to the client.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName};

use super::address::{parse, trim};
use super::forwarded;

/// The most entries that are read, empty ones and empty lines included. No chain of proxies is so
/// long.
pub(super) const MAX_ENTRIES: usize = 64;

/// The most bytes of a header that are read, from the end.
pub(super) const MAX_BYTES: usize = 8192;

/// Why a chain has no address at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Invalid {
    /// The entry is not an address, but garbage, `unknown`, or an obfuscated identifier.
    NotAnAddress,
    /// The line does not follow the grammar, so its entries cannot be counted.
    Malformed,
    /// The header is longer than what is read of it.
    TooLong,
}

impl Invalid {
    /// Returns whether only one entry is invalid, so that the others can be counted.
    pub(super) fn is_one_entry(self) -> bool {
        self == Self::NotAnAddress
    }
}

/// A header to which each proxy appends the address of its own peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chain {
    XForwardedFor,
    /// RFC 7239.
    Forwarded,
}

impl Chain {
    pub(super) const fn header(self) -> &'static HeaderName {
        static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
        static FORWARDED: HeaderName = http::header::FORWARDED;
        match self {
            Self::XForwardedFor => &X_FORWARDED_FOR,
            Self::Forwarded => &FORWARDED,
        }
    }

    /// Calls `visit` with each entry, the newest first, until it returns a result. All lines of the
    /// header are one list, whose end is the newest entry.
    ///
    /// The entries of a client are to the left of those that proxies append. So nothing to the left
    /// of the entry that decides is read.
    pub(super) fn find<T>(
        self,
        headers: &HeaderMap,
        mut visit: impl FnMut(Result<IpAddr, Invalid>) -> Option<T>,
    ) -> Option<T> {
        let mut budget = ReadAllowance {
            entries: MAX_ENTRIES,
            bytes: MAX_BYTES,
        };
        for line in headers.get_all(self.header()).iter().rev() {
            let found = match self {
                Self::XForwardedFor => x_forwarded_for(line.as_bytes(), &mut budget, &mut visit),
                Self::Forwarded => forwarded(line.as_bytes(), &mut budget, &mut visit),
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

/// The bytes and entries that may still be read.
struct ReadAllowance {
    entries: usize,
    bytes: usize,
}

impl ReadAllowance {
    /// Returns whether one more entry, empty or not, may be read.
    fn takes_entry(&mut self) -> bool {
        let left = self.entries.checked_sub(1);
        self.entries = left.unwrap_or(0);
        left.is_some()
    }

    fn takes_bytes(&mut self, bytes: usize) -> bool {
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.unwrap_or(0);
        left.is_some()
    }
}

fn x_forwarded_for<T>(
    line: &[u8],
    budget: &mut ReadAllowance,
    visit: &mut impl FnMut(Result<IpAddr, Invalid>) -> Option<T>,
) -> Option<T> {
    // The cut may be within an entry.
    let cut = line.len().saturating_sub(budget.bytes);
    let mut rest = Some(&line[cut..]);
    while let Some(unread) = rest {
        let comma = unread.iter().rposition(|&byte| byte == b',');
        let (before, entry) = match comma {
            Some(comma) => (Some(&unread[..comma]), &unread[comma.saturating_add(1)..]),
            None => (None, unread),
        };
        if !budget.takes_entry() || (before.is_none() && cut > 0) {
            return visit(Err(Invalid::TooLong));
        }
        let _is_cut_above = budget.takes_bytes(entry.len().saturating_add(1));
        let entry = trim(entry);
        if !entry.is_empty() {
            let found = visit(parse(entry).ok_or(Invalid::NotAnAddress));
            if found.is_some() {
                return found;
            }
        }
        rest = before;
    }
    None
}

/// The start of a line decides which of its quotes open a string. So the line is parsed as a whole.
fn forwarded<T>(
    line: &[u8],
    budget: &mut ReadAllowance,
    visit: &mut impl FnMut(Result<IpAddr, Invalid>) -> Option<T>,
) -> Option<T> {
    if !budget.takes_entry() || !budget.takes_bytes(line.len()) {
        return visit(Err(Invalid::TooLong));
    }
    let Some(elements) = forwarded::elements(line) else {
        return visit(Err(Invalid::Malformed));
    };
    elements.into_iter().rev().find_map(|node| {
        if budget.takes_entry() {
            visit(node.ok_or(Invalid::NotAnAddress))
        } else {
            visit(Err(Invalid::TooLong))
        }
    })
}
