//! The chain of addresses that proxies append to, from the nearest proxy to the client.

use std::fmt;
use std::net::IpAddr;

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName};

use super::address::{parse, trim};
use super::forwarded;

/// The most entries that are read, empty ones and empty lines included. No chain of proxies is so
/// long.
pub(super) const MAX_ENTRIES: usize = 64;

/// The most bytes of a header that are read, from the end.
pub(super) const MAX_BYTES: usize = 8192;

/// A header to which each proxy appends the address of its own peer.
pub(super) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Returns whether a header is a list, to which each proxy appends.
pub(super) fn is_list(header: &HeaderName) -> bool {
    *header == X_FORWARDED_FOR || *header == FORWARDED
}

/// Why a trusted proxy names no client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForwardingProblem {
    /// The header is missing, or it has fewer addresses than hops.
    Missing,
    /// All addresses belong to trusted proxies.
    AllTrusted,
    /// The entry is not an address, but garbage, `unknown`, or an obfuscated identifier.
    NotAnAddress,
    /// The line does not follow the grammar, so its entries cannot be counted.
    Malformed,
    /// The header is longer than what is read of it.
    TooLong,
    /// A header with one address is sent more than once.
    Repeated,
}

impl fmt::Display for ForwardingProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "the header is missing, or has too few addresses",
            Self::AllTrusted => "all addresses are trusted",
            Self::NotAnAddress => "the entry is not an address",
            Self::Malformed => "the line is malformed",
            Self::TooLong => "the header is too long",
            Self::Repeated => "the header is sent more than once",
        })
    }
}

/// Calls `visit` with each entry of a list, the newest first, until it returns a result. All lines
/// of the header are one list, whose end is the newest entry.
///
/// The entries of a client are to the left of those that proxies append. So nothing to the left of
/// the entry that decides is read.
pub(super) fn find<T>(
    header: &HeaderName,
    headers: &HeaderMap,
    mut visit: impl FnMut(Result<IpAddr, ForwardingProblem>) -> Option<T>,
) -> Option<T> {
    let mut budget = ReadAllowance {
        entries: MAX_ENTRIES,
        bytes: MAX_BYTES,
    };
    let mut lines = headers.get_all(header).iter().rev();
    lines.find_map(|line| match *header == FORWARDED {
        true => forwarded(line.as_bytes(), &mut budget, &mut visit),
        false => x_forwarded_for(line.as_bytes(), &mut budget, &mut visit),
    })
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
    visit: &mut impl FnMut(Result<IpAddr, ForwardingProblem>) -> Option<T>,
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
            return visit(Err(ForwardingProblem::TooLong));
        }
        let _is_cut_above = budget.takes_bytes(entry.len().saturating_add(1));
        let entry = trim(entry);
        if !entry.is_empty() {
            let found = visit(parse(entry).ok_or(ForwardingProblem::NotAnAddress));
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
    visit: &mut impl FnMut(Result<IpAddr, ForwardingProblem>) -> Option<T>,
) -> Option<T> {
    if !budget.takes_entry() || !budget.takes_bytes(line.len()) {
        return visit(Err(ForwardingProblem::TooLong));
    }
    let Some(elements) = forwarded::elements(line) else {
        return visit(Err(ForwardingProblem::Malformed));
    };
    elements.into_iter().rev().find_map(|node| {
        if budget.takes_entry() {
            visit(node.ok_or(ForwardingProblem::NotAnAddress))
        } else {
            visit(Err(ForwardingProblem::TooLong))
        }
    })
}
