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

/// The numbers that a thread keeps rendered.
struct Rendered {
    kept: [(u64, HeaderValue); 8],
    /// The one to be replaced next.
    oldest: usize,
}

thread_local! {
    static RENDERED: RefCell<Rendered> = const {
        RefCell::new(Rendered { kept: [const { (0, HeaderValue::from_static("0")) }; 8], oldest: 0 })
    };
}

/// A number that many responses repeat: a capacity, or a time in seconds. It is rendered once for
/// each thread. Threads share no value: a shared reference count is slower than an allocation.
pub(super) fn repeated(it: u64) -> HeaderValue {
    RENDERED.with_borrow_mut(|Rendered { kept, oldest }| {
        if let Some((_, value)) = kept.iter().find(|(number, _)| *number == it) {
            return value.clone();
        }
        let value = number(it);
        kept[*oldest] = (it, value.clone());
        *oldest = (*oldest + 1) % kept.len();
        value
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
