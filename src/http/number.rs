//! Numbers as header values, most of them without an allocation.

use std::cell::RefCell;

use http::HeaderValue;

/// Numbers below this are there from the start: what is left of most budgets.
const SMALL: usize = 1000;

/// How many greater numbers a thread remembers: limits, which are the same in each response, and
/// times, which are the same in many.
const REMEMBERED: usize = 64;

static DIGITS: [[u8; 3]; SMALL] = {
    let mut digits = [[b'0'; 3]; SMALL];
    let mut number = 0;
    while number < SMALL {
        let (hundreds, tens, ones) = (number / 100, number / 10 % 10, number % 10);
        digits[number] = [b'0' + hundreds as u8, b'0' + tens as u8, b'0' + ones as u8];
        number += 1;
    }
    digits
};

thread_local! {
    static RENDERED: RefCell<[Option<(u64, HeaderValue)>; REMEMBERED]> =
        const { RefCell::new([const { None }; REMEMBERED]) };
}

/// The number in decimal.
pub(super) fn number(number: u64) -> HeaderValue {
    if let Some(digits) = usize::try_from(number).ok().and_then(|number| DIGITS.get(number)) {
        let leading_zeros = match number {
            0..10 => 2,
            10..100 => 1,
            _ => 0,
        };
        if let Ok(digits) = str::from_utf8(&digits[leading_zeros..]) {
            return HeaderValue::from_static(digits);
        }
    }
    RENDERED.with_borrow_mut(|rendered| {
        let slot = &mut rendered[number as usize % REMEMBERED];
        match slot {
            Some((same, value)) if *same == number => value.clone(),
            _ => slot.insert((number, number.into())).1.clone(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_told_in_decimal_the_first_time_and_again() {
        for it in (0..=1_100).chain([u64::MAX, u64::MAX - 64, 64 * 1_000, u64::MAX]) {
            assert_eq!(number(it), it.to_string());
            assert_eq!(number(it), it.to_string());
        }
    }
}
