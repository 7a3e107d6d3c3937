//! Times as header values.

use std::cell::RefCell;
use std::time::{Duration, SystemTime};

use http::HeaderValue;

/// The start of the year 10000, in seconds since the Unix epoch. It has no HTTP date.
const END: u64 = 253_402_300_800;

thread_local! {
    static LAST: RefCell<Option<(u64, HeaderValue)>> = const { RefCell::new(None) };
}

/// The HTTP date of a time in seconds since the Unix epoch. `None` after the year 9999.
///
/// Each thread keeps the last one rendered, because the denials of a second have the same.
pub(super) fn imf_fixdate(seconds: u64) -> Option<HeaderValue> {
    LAST.with_borrow_mut(|last| {
        if let Some((known, date)) = last
            && *known == seconds
        {
            return Some(date.clone());
        }
        let date = rendered(seconds)?;
        *last = Some((seconds, date.clone()));
        Some(date)
    })
}

fn rendered(seconds: u64) -> Option<HeaderValue> {
    let since_epoch = Duration::from_secs(Some(seconds).filter(|seconds| *seconds < END)?);
    let time = SystemTime::UNIX_EPOCH.checked_add(since_epoch)?;
    HeaderValue::try_from(httpdate::fmt_http_date(time)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_follows_the_time_and_ends_with_the_year_9999() {
        for _ in 0..2 {
            assert_eq!(
                imf_fixdate(784_111_777).unwrap(),
                "Sun, 06 Nov 1994 08:49:37 GMT"
            );
            assert_eq!(
                imf_fixdate(784_111_777).unwrap(),
                "Sun, 06 Nov 1994 08:49:37 GMT"
            );
            assert_eq!(
                imf_fixdate(784_111_778).unwrap(),
                "Sun, 06 Nov 1994 08:49:38 GMT"
            );
            assert_eq!(
                imf_fixdate(END - 1).unwrap(),
                "Fri, 31 Dec 9999 23:59:59 GMT"
            );
            assert_eq!(imf_fixdate(END), None);
            assert_eq!(imf_fixdate(u64::MAX), None);
        }
    }
}
