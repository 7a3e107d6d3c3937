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

thread_local! {
    static LAST_TIME: RefCell<(u64, HeaderValue)> =
        const { RefCell::new((0, HeaderValue::from_static("0"))) };
}

/// A time in seconds. Most responses of one second report the same time: it is rendered once for
/// each thread.
pub(super) fn time(seconds: u64) -> HeaderValue {
    LAST_TIME.with_borrow_mut(|(last, value)| {
        if *last != seconds {
            (*last, *value) = (seconds, number(seconds));
        }
        value.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_written_in_decimal() {
        for it in (0..=1_100).chain([u64::MAX, u64::MAX - 64, 64_000, 1_790_000_000]) {
            assert_eq!(number(it), it.to_string());
            assert_eq!(time(it), it.to_string());
            assert_eq!(time(it), it.to_string(), "the second time");
        }
    }
}
