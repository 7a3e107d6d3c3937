//! Numbers as header values.

use std::cell::RefCell;
use std::time::Duration;

use http::HeaderValue;

/// The number in decimal. One allocation, because `HeaderValue::from` makes two.
pub(super) fn number(number: u64) -> HeaderValue {
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(number);
    HeaderValue::from_str(digits).unwrap_or(HeaderValue::from_static("0"))
}

/// Whole seconds, rounded up, and never early.
pub(super) fn seconds(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0))
}

/// The most numbers that a thread keeps rendered, such as capacities, and the seconds of a minute.
/// It is a power of two.
const KEPT: usize = 64;

thread_local! {
    static RENDERED: RefCell<[(u64, Option<HeaderValue>); KEPT]> =
        const { RefCell::new([const { (0, None) }; KEPT]) };
}

/// A number that many responses repeat, such as a capacity, or a time in seconds. From its second
/// time on, each thread keeps it rendered until another number needs its place. Threads share no
/// value, because a shared reference count is slower than an allocation.
pub(super) fn repeated(it: u64) -> HeaderValue {
    RENDERED.with_borrow_mut(|kept| {
        // Fibonacci hashing, because capacities are round numbers, whose lowest bits are alike.
        let place = it.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - KEPT.ilog2());
        let (known, value) = &mut kept[place as usize];
        if *known != it {
            // A value that is kept costs one allocation more, and this number may not come again.
            (*known, *value) = (it, None);
            return number(it);
        }
        value.get_or_insert_with(|| number(it)).clone()
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
            assert_eq!(repeated(it), it.to_string(), "the third time");
        }
    }

    #[test]
    fn numbers_of_one_place_replace_each_other() {
        for it in [60, 5, 60, 5, 0, 34, 0] {
            assert_eq!(repeated(it), it.to_string());
        }
    }
}
