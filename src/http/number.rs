//! Numbers as header values.

use std::cell::RefCell;
use std::time::Duration;

use http::HeaderValue;

/// The numbers below this one are in [`SMALL`].
const SMALL_BELOW: usize = 10_000;

/// Four digits of each small number, with leading zeros, in 40 kB. Most limits and remaining units
/// are that small. A static header value needs no allocation and no reference count.
static SMALL: [[u8; 4]; SMALL_BELOW] = {
    let mut digits = [[b'0'; 4]; SMALL_BELOW];
    let mut number = 0;
    while number < SMALL_BELOW {
        let mut rest = number;
        let mut place = 4;
        while rest > 0 {
            place -= 1;
            digits[number][place] += (rest % 10) as u8;
            rest /= 10;
        }
        number += 1;
    }
    digits
};

/// The number in decimal, if it is small.
#[inline]
fn small(number: u64) -> Option<HeaderValue> {
    let digits = SMALL.get(usize::try_from(number).ok()?)?;
    let zeros = match number {
        0..10 => 3,
        10..100 => 2,
        100..1_000 => 1,
        _ => 0,
    };
    let text = str::from_utf8(&digits[zeros..]).ok()?;
    Some(HeaderValue::from_static(text))
}

/// The number in decimal.
#[inline]
pub(super) fn number(number: u64) -> HeaderValue {
    small(number).unwrap_or_else(|| allocated(number))
}

/// Renders the number with one allocation. `HeaderValue::from` makes two.
fn allocated(number: u64) -> HeaderValue {
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

/// The most numbers that a thread keeps rendered, such as large capacities, and times of resets.
/// It is a power of two.
const KEPT: usize = 64;

thread_local! {
    static RENDERED: RefCell<[(u64, Option<HeaderValue>); KEPT]> =
        const { RefCell::new([const { (0, None) }; KEPT]) };
}

/// A number that many responses repeat, such as a capacity, or a time in seconds. From its second
/// time on, each thread keeps it rendered until another number needs its place. Threads share no
/// value, because a shared reference count is slower than an allocation.
#[inline]
pub(super) fn repeated(it: u64) -> HeaderValue {
    small(it).unwrap_or_else(|| kept(it))
}

fn kept(it: u64) -> HeaderValue {
    RENDERED.with_borrow_mut(|kept| {
        let (known, value) = &mut kept[place(it)];
        if *known != it {
            // A value that is kept costs one allocation more, and this number may not come again.
            (*known, *value) = (it, None);
            return allocated(it);
        }
        value.get_or_insert_with(|| allocated(it)).clone()
    })
}

/// Fibonacci hashing, because capacities are round numbers, whose lowest bits are alike.
const fn place(it: u64) -> usize {
    (it.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - KEPT.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_written_in_decimal() {
        for it in (0..=10_100).chain([u64::MAX, u64::MAX - 64, 64_000, 1_790_000_000]) {
            assert_eq!(number(it), it.to_string());
            assert_eq!(repeated(it), it.to_string());
            assert_eq!(repeated(it), it.to_string(), "the second time");
            assert_eq!(repeated(it), it.to_string(), "the third time");
        }
    }

    #[test]
    fn numbers_of_one_place_replace_each_other() {
        let alike = [10_252, 10_197];
        assert_eq!(place(alike[0]), place(alike[1]));
        for it in [alike, alike].concat() {
            assert_eq!(repeated(it), it.to_string());
            assert_eq!(repeated(it), it.to_string(), "the second time");
        }
    }
}
