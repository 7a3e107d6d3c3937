//! Numbers as header values.

use std::cell::RefCell;

use http::HeaderValue;

/// The digits of the largest `u64`.
const MAX_DIGITS: usize = 20;

/// The number in decimal. One allocation: `HeaderValue::from` makes two.
pub(super) fn number(number: u64) -> HeaderValue {
    let mut digits = [b'0'; MAX_DIGITS];
    let (mut rest, mut start) = (number, MAX_DIGITS);
    for (place, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        start = place;
        if rest == 0 {
            break;
        }
    }
    let digits = digits.get(start..).unwrap_or_default();
    HeaderValue::from_bytes(digits).unwrap_or(HeaderValue::from_static("0"))
}

/// How many repeated numbers a thread keeps.
const KEPT: usize = 8;

thread_local! {
    static REPEATED: RefCell<[(u64, HeaderValue); KEPT]> =
        const { RefCell::new([const { (0, HeaderValue::from_static("0")) }; KEPT]) };
}

/// A number that many responses repeat: a capacity, or a time in seconds. It is rendered once for
/// each thread. Threads share no value: a shared reference count is slower than an allocation.
pub(super) fn repeated(it: u64) -> HeaderValue {
    REPEATED.with_borrow_mut(|repeated| {
        let slot = &mut repeated[it as usize % KEPT];
        if slot.0 != it {
            *slot = (it, number(it));
        }
        slot.1.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_written_in_decimal() {
        for it in (0..=1_100).chain([u64::MAX, u64::MAX - 64, 64_000, 1_790_000_000]) {
            assert_eq!(number(it), it.to_string());
            assert_eq!(repeated(it), it.to_string());
            assert_eq!(repeated(it), it.to_string(), "the second time");
        }
    }
}
