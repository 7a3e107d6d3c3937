//! Claims of permits: the other side of `scripts/permits.lua`.

use super::Body;
use crate::store::permits::Claim;

/// The longest lease, in microseconds. The script counts a value with a longer one as corrupt.
const MAX_LEASE_OF_PERMITS: u64 = 600 * 1_000_000;

/// `ARGV[1]` of claims of permits: see `scripts/permits.lua`.
pub(in crate::store::redis) fn permits<'a>(claims: impl Iterator<Item = &'a Claim>) -> Vec<u8> {
    let mut body = Body(Vec::with_capacity(64));
    body.push_name("permits");
    for claim in claims.map(Claim::numbers) {
        body.0.extend_from_slice(&claim.holder.0);
        body.push(claim.granted, 7);
        body.push(claim.released, 7);
        for number in [claim.waiting, claim.at_once, claim.limit] {
            body.push(number.into(), 4);
        }
        body.push(claim.lease.min(MAX_LEASE_OF_PERMITS), 7);
    }
    body.0
}
