//! Costs that are settled when the real ones are known.

mod unseen;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Response, response};
use tokio::runtime::Handle as Runtime;

use self::unseen::Unseen;
use super::sampled::is_sampled;
use crate::limiter::{RateLimiter, UnansweredSettlement};
use crate::model::{Budget, Change, Decision, Error, Group, Limit, Source};
use crate::telemetry::{self, Throttle};
use crate::units::{Mutex, MutexGuard, Receipt};

/// The costs that a request was charged, to be settled when the real costs are known, such as
/// tokens of a language model, bytes sent, the cost of a query. It is in the request's extensions
/// if the layer [inserts it](crate::RateLimitLayer::insert_settlement).
///
/// The request is charged an estimate before it is forwarded. [`settle`](Self::settle) states the
/// real cost. The difference is given back, or charged even if it does not fit. The debt delays
/// later requests. See [`RateLimiter::settle`](crate::RateLimiter::settle).
///
/// - Each limit is settled at most once, whichever clone is used. Move a clone into a streaming
///   body.
/// - If it is dropped, as by a client that disconnects or a handler that panics, the estimates
///   stand.
/// - A settlement is sent in the background, with other checks. It never delays the response.
/// - A settlement that fails is not repeated, and an event reports it, because it may have been
///   carried out. So it is never charged or given back twice.
/// - A request that was decided [locally](Source::Local) is settled as [`RateLimiter::settle`]
///   says. One that failed open was charged nothing, so nothing is settled.
/// - Before a program ends, [`RateLimiter::flush`] waits for the settlements in flight.
///
/// With several layers, it has the charges of all of them. A request that is not limited also has a
/// settlement, without charges.
///
/// ```
/// use tollgate::layer::Settlement;
///
/// async fn handler(settlement: Settlement) -> String {
///     let answer = "42".to_owned();
///     let tokens = 812;
///     let _settled = settlement.settle("tokens", tokens);
///     answer
/// }
/// # let _ = handler;
/// ```
#[derive(Clone)]
pub struct Settlement {
    shared: Arc<SharedCharges>,
}

struct SharedCharges {
    /// The charges that are not settled.
    charges: Mutex<Vec<OpenCharge>>,
    /// `true` if any charge was settled.
    has_settled: AtomicBool,
    runtime: Option<Runtime>,
    layer: Arc<SettlingRecord>,
}

/// After so many requests that settle a name, one of them should have been charged under it.
const ENOUGH_UNCHARGED: u32 = 100;

/// After so many requests whose estimate was 0 and whose real cost was not, one should have had an
/// estimate.
const ENOUGH_FREE: u32 = 1_000;

/// The events and the mistakes of a layer, shared by its settlements.
#[derive(Default)]
pub(super) struct SettlingRecord {
    events: Throttle,
    /// The names under which requests were charged. A mistyped name leaves every estimate as it is.
    charged: Unseen,
    /// The names under which a request had an estimate above 0. A check of cost 0 always passes,
    /// also in debt.
    estimated: Unseen,
    /// `true` if one of the two missed a name. Until then, a sample of the settlements is enough to
    /// know which names are used.
    has_missed: AtomicBool,
}

impl SettlingRecord {
    /// Sees a settlement of this cost. Returns whether it is time to report that the limit has no
    /// estimates.
    #[inline]
    fn see(&self, charge: &OpenCharge, cost: u32) -> bool {
        let is_free = charge.cost == 0 && cost > 0;
        (is_free || self.has_missed.load(Ordering::Relaxed) || is_sampled())
            && self.see_in_full(charge, is_free)
    }

    #[cold]
    fn see_in_full(&self, charge: &OpenCharge, is_free: bool) -> bool {
        let name = charge.limit_name();
        self.charged.see(name);
        if charge.cost > 0 {
            self.estimated.see(name);
        }
        is_free && self.count(&self.estimated, name) == ENOUGH_FREE
    }

    /// Counts a settlement that misses a name.
    fn count(&self, names: &Unseen, name: &str) -> u32 {
        if !self.has_missed.load(Ordering::Relaxed) {
            self.has_missed.store(true, Ordering::Relaxed);
        }
        names.count(name)
    }
}

/// A charge that may be settled.
struct OpenCharge {
    /// The layer that charged it.
    layer: Arc<SettlingRecord>,
    limiter: RateLimiter,
    budget: Budget,
    /// The cost that was charged, and later the real one, in units.
    cost: u32,
    receipt: Receipt,
}

impl OpenCharge {
    fn is_of(&self, layer: &Arc<SettlingRecord>) -> bool {
        Arc::ptr_eq(&self.layer, layer)
    }

    fn limit_name(&self) -> &str {
        self.budget.limit().name()
    }

    /// Settles the charge at its real cost, in the background.
    fn settle(self, runtime: Option<&Runtime>) {
        let pending = PendingSettlement {
            limit: self.budget.limit().clone(),
            layer: self.layer,
            is_over: false,
            _unanswered: self.limiter.track_settlement(),
        };
        let settle = Change::Settle {
            receipt: self.receipt,
            cost: self.cost,
        };
        let mut answer = self.limiter.change_observed(self.budget, settle);
        match (answer.take_ready(), runtime) {
            (Some(answer), _) => pending.answered(answer),
            (None, Some(runtime)) => drop(runtime.spawn(async move {
                let answer = answer.await;
                pending.answered(answer);
            })),
            (None, None) => {}
        }
    }
}

impl Settlement {
    /// Adds the charges of an allowed group to the charges of the layers outside.
    pub(super) fn from_charges(
        limiter: &RateLimiter,
        group: &Group,
        decision: &Decision,
        outside: Option<&Self>,
        settings: &SettlementSettings,
    ) -> Self {
        let settlement = outside.cloned().unwrap_or_else(|| Self::new(settings));
        if matches!(
            decision.source(),
            Source::Store | Source::Asynchronous | Source::Local
        ) {
            let checks = group.iter().zip(decision.receipts());
            let charged = checks.filter(|(check, receipt)| receipt.is_some() || check.cost() == 0);
            settlement
                .charges()
                .extend(charged.map(|(check, receipt)| OpenCharge {
                    layer: Arc::clone(&settings.layer),
                    limiter: limiter.clone(),
                    budget: check.charged_budget(decision.source() == Source::Local),
                    cost: check.cost(),
                    receipt: receipt.unwrap_or_default(),
                }));
        }
        settlement
    }

    /// A settlement without charges.
    pub(super) fn new(settings: &SettlementSettings) -> Self {
        let charges = Mutex::default();
        let runtime = Runtime::try_current().ok();
        Self {
            shared: Arc::new(SharedCharges {
                charges,
                has_settled: AtomicBool::new(false),
                runtime,
                layer: Arc::clone(&settings.layer),
            }),
        }
    }

    /// Settles the charge under a limit at its real cost, in units. Returns whether there is one:
    /// `false` if the request was not charged under this limit, or if that charge is settled. A
    /// debt has no receipt, so it cannot be given back.
    ///
    /// If you mistype the name, nothing is settled, and every request keeps its estimate. An event
    /// says so, after 100 requests of which none was charged under it.
    #[must_use = "`false` says that the request was not charged under this limit"]
    pub fn settle(&self, limit: &str, cost: u32) -> bool {
        self.settle_all([(limit, cost)]) > 0
    }

    /// Settles the charges under several limits. On Redis they share a call. Returns how many there
    /// are. If a name comes twice, its first cost counts.
    #[must_use = "fewer than the costs were settled if the request was not charged under some"]
    pub fn settle_all<'a>(&self, costs: impl IntoIterator<Item = (&'a str, u32)>) -> usize {
        let costs: Vec<_> = costs.into_iter().collect();
        let count = self.settle_by(|charge| {
            let of_limit = |(limit, _): &&(&str, u32)| *limit == charge.limit_name();
            costs.iter().find(of_limit).map(|(_, cost)| *cost)
        });
        if count < costs.len() {
            costs
                .iter()
                .for_each(|(limit, _)| self.report_uncharged(limit));
        }
        count
    }

    /// Reports a name under which no request was charged. One that was settled before is known.
    fn report_uncharged(&self, limit: &str) {
        // These are copies, because a subscriber of the event may settle, which locks the charges.
        let open: Vec<Limit> = {
            let charges = self.charges();
            let limits = charges.iter().map(|charge| charge.budget.limit());
            limits.cloned().collect()
        };
        // A request that was not limited, or failed open, has no charges.
        let was_charged = !open.is_empty() || self.shared.has_settled.load(Ordering::Relaxed);
        let layer = &self.shared.layer;
        if was_charged && layer.count(&layer.charged, limit) == ENOUGH_UNCHARGED {
            let charged = layer.charged.seen();
            let settled = charged.iter().map(|name| &**name);
            let names: BTreeSet<&str> = open.iter().map(Limit::name).chain(settled).collect();
            let names: Vec<&str> = names.into_iter().collect();
            telemetry::settled_uncharged(limit, &names, ENOUGH_UNCHARGED);
        }
    }

    /// Gives back the costs under all limits that are not settled. Returns how many limits there
    /// are.
    pub fn refund(&self) -> usize {
        self.settle_by(|_| Some(0))
    }

    /// Returns a meter of the cost under a limit, for a stream. It settles what was
    /// [added](Meter::add) when it is dropped, at its end or because the client disconnected.
    #[must_use = "the cost is settled when the meter is dropped"]
    pub fn meter(&self, limit: impl Into<String>) -> Meter {
        Meter {
            settlement: self.clone(),
            limit: limit.into(),
            cost: 0,
        }
    }

    /// The charged cost under a limit, in units. `None` if there is none, or if it is settled.
    #[must_use]
    pub fn charged(&self, limit: &str) -> Option<u32> {
        let charges = self.charges();
        let charge = charges.iter().find(|charge| charge.limit_name() == limit);
        charge.map(|charge| charge.cost)
    }

    fn settle_by(&self, cost: impl Fn(&OpenCharge) -> Option<u32>) -> usize {
        let layer = &self.shared.layer;
        let mut without_estimate = Vec::new();
        let settled: Vec<OpenCharge> = {
            let mut charges = self.charges();
            let taken = charges.extract_if(.., |charge| {
                let Some(cost) = cost(charge) else {
                    return false;
                };
                if layer.see(charge, cost) {
                    without_estimate.push(charge.budget.limit().clone());
                }
                charge.cost = cost;
                true
            });
            taken.collect()
        };
        // The charges are not locked here, because a subscriber of the event may settle.
        for limit in without_estimate {
            telemetry::settled_without_estimate(limit.name(), ENOUGH_FREE);
        }
        let count = settled.len();
        if count > 0 {
            self.shared.has_settled.store(true, Ordering::Relaxed);
        }
        // A handler may settle in a thread without a runtime.
        let runtime = Runtime::try_current()
            .ok()
            .or_else(|| self.shared.runtime.clone());
        let _entered = runtime.as_ref().map(Runtime::enter);
        for charge in settled {
            charge.settle(runtime.as_ref());
        }
        count
    }

    fn charges(&self) -> MutexGuard<'_, Vec<OpenCharge>> {
        self.shared.charges.lock()
    }
}

/// A cost that is counted while it arises. See [`Settlement::meter`].
///
/// ```
/// use tollgate::layer::Settlement;
///
/// async fn answer(settlement: Settlement) {
///     let mut meter = settlement.meter("tokens");
///     for token in ["an", "answer"] {
///         // Send the token.
///         meter.add(1);
///         # let _ = token;
///     }
/// }
/// # let _ = answer;
/// ```
#[derive(Debug)]
pub struct Meter {
    settlement: Settlement,
    limit: String,
    cost: u32,
}

impl Meter {
    /// Adds units to the cost.
    pub const fn add(&mut self, units: u32) {
        self.cost = self.cost.saturating_add(units);
    }

    /// The cost so far, in units.
    #[must_use]
    pub const fn cost(&self) -> u32 {
        self.cost
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        // A name under which nothing was charged is reported.
        let _ = self.settlement.settle(&self.limit, self.cost);
    }
}

/// A settlement without an answer. It is reported if it never gets one, because the runtime was
/// shut down.
struct PendingSettlement {
    limit: Limit,
    layer: Arc<SettlingRecord>,
    is_over: bool,
    _unanswered: UnansweredSettlement,
}

impl PendingSettlement {
    fn answered(mut self, answer: Result<Decision, Error>) {
        self.is_over = true;
        if let Err(error) = answer {
            telemetry::unsettled(&self.layer.events, self.limit.name(), &error);
        }
    }
}

impl Drop for PendingSettlement {
    fn drop(&mut self) {
        if !self.is_over {
            let error = Error::store("the runtime was shut down");
            telemetry::unsettled(&self.layer.events, self.limit.name(), &error);
        }
    }
}

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let charges = self.charges();
        let of = |charge: &OpenCharge| (charge.limit_name().to_owned(), charge.cost);
        f.debug_map().entries(charges.iter().map(of)).finish()
    }
}

type OnResponse = Arc<dyn Fn(&response::Parts) -> Settled + Send + Sync>;

/// The charges of a layer that its response settles.
pub(super) enum Settled {
    Nothing,
    /// All of them, at no cost.
    Refunded,
    /// That under one limit, at its real cost.
    At(Arc<str>, u32),
}

/// When a layer settles costs.
#[derive(Clone, Default)]
pub(super) struct SettlementSettings {
    /// `true` if handlers get a [`Settlement`].
    pub(super) inserts: bool,
    on_response: Vec<OnResponse>,
    layer: Arc<SettlingRecord>,
}

impl SettlementSettings {
    pub(super) fn on_response(
        &mut self,
        settle: impl Fn(&response::Parts) -> Settled + Send + Sync + 'static,
    ) {
        self.on_response.push(Arc::new(settle));
    }

    /// Returns whether the charges of a request are kept.
    pub(super) const fn is_on(&self) -> bool {
        self.inserts || self.closes()
    }

    /// Returns whether a response settles the charges of its request.
    pub(super) const fn closes(&self) -> bool {
        !self.on_response.is_empty()
    }

    /// Settles a request, which has its response. Charges of other layers are theirs to settle.
    pub(super) fn close<B>(&self, settlement: &Settlement, response: Response<B>) -> Response<B> {
        let (parts, body) = response.into_parts();
        for settle in &self.on_response {
            let settled = settle(&parts);
            let count = settlement.settle_by(|charge| match &settled {
                _ if !charge.is_of(&self.layer) => None,
                Settled::Nothing => None,
                Settled::Refunded => Some(0),
                Settled::At(limit, cost) => (**limit == *charge.limit_name()).then_some(*cost),
            });
            if let (0, Settled::At(limit, _)) = (count, &settled) {
                settlement.report_uncharged(limit);
            }
        }
        Response::from_parts(parts, body)
    }
}
