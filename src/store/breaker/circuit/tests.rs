//! The states, by a clock that is moved by hand.

use super::*;

const MS: Duration = Duration::from_millis(1);

/// A circuit, and a clock that is moved by hand.
struct Bench {
    circuit: Circuit,
    now: Instant,
}

impl Bench {
    fn new(settings: BreakerSettings) -> Self {
        let now = Instant::now();
        Self {
            circuit: Circuit::new(settings, now),
            now,
        }
    }

    fn wait(&mut self, millis: u32) {
        self.now += MS * millis;
    }

    /// A call that takes so many milliseconds.
    fn call(&mut self, millis: u32, failed: bool) -> Option<Calls> {
        let begun = self.circuit.begin(self.now);
        self.wait(millis);
        match self.circuit.end(begun, failed, self.now) {
            Some(CircuitChange::Opened(calls)) => Some(calls),
            Some(CircuitChange::HalfOpened) | None => None,
        }
    }

    fn is_open(&self) -> bool {
        self.circuit.state() == BreakerState::Open
    }

    /// Fails calls until the breaker is open.
    fn open(&mut self) {
        while self.call(1, true).is_none() {}
    }

    /// Waits for the next probe, and ends it so.
    fn probe(&mut self, succeeded: bool) {
        self.now = self.circuit.next().unwrap();
        assert!(self.circuit.probe(self.now));
        assert_eq!(self.circuit.state(), BreakerState::HalfOpen);
        self.circuit.probed(succeeded, self.now);
    }

    /// How many of a thousand checks are sent.
    fn admitted(&self) -> usize {
        (0..1_000)
            .filter(|_| self.circuit.admit(self.now).is_ok())
            .count()
    }
}

#[tokio::test(start_paused = true)]
async fn one_failure_of_three_calls_does_not_open_it_and_two_do() {
    let mut bench = Bench::new(BreakerSettings::new());
    assert_eq!(bench.call(250, true), None);
    assert_eq!(bench.call(1, false), None);
    assert_eq!(bench.call(1, false), None);
    assert_eq!(bench.call(250, true), None);
    assert!(!bench.is_open());
    assert_eq!(bench.call(250, true), Some(Calls { all: 3, failed: 2 }));
    assert!(bench.is_open());
}

#[tokio::test(start_paused = true)]
async fn share_of_failures_within_the_window_opens_it() {
    for (failure_percent, failing, opens) in [
        (50, 49, false),
        (50, 51, true),
        (10, 9, false),
        (10, 11, true),
        (100, 99, false),
    ] {
        let settings = BreakerSettings::new()
            .failure_percent(failure_percent)
            .min_calls(20);
        let mut bench = Bench::new(settings);
        (0..300).for_each(|_| assert_eq!(bench.call(1, false), None));
        let mut opened = false;
        for number in 0..10_000 {
            // The failures are spread evenly.
            let failed = (number * failing) % 100 < failing;
            opened |= bench.call(1, failed).is_some();
        }
        assert_eq!(opened, opens, "{failing} % of {failure_percent} %");
    }
}

#[tokio::test(start_paused = true)]
async fn successes_from_before_a_hang_do_not_keep_it_closed() {
    let mut bench = Bench::new(BreakerSettings::new());
    for _ in 0..10_000 {
        bench.call(0, false);
        bench.now += MS / 10;
    }
    // Two calls were in flight when the server hung.
    let begun = bench.circuit.begin(bench.now);
    bench.wait(251);
    assert_eq!(bench.circuit.end(begun, true, bench.now), None);
    assert!(bench.circuit.end(begun, true, bench.now).is_some());
}

#[tokio::test(start_paused = true)]
async fn slow_calls_count_as_failed() {
    let mut bench = Bench::new(BreakerSettings::new().slow_after(MS * 50));
    for _ in 0..100 {
        assert_eq!(bench.call(49, false), None);
    }
    let opened = (0..10).any(|_| bench.call(50, false).is_some());
    assert!(opened && bench.is_open());
}

#[tokio::test(start_paused = true)]
async fn open_breaker_sends_nothing_and_says_when_it_probes() {
    let mut bench = Bench::new(BreakerSettings::new());
    assert_eq!(bench.admitted(), 1_000);
    bench.open();
    assert_eq!(bench.admitted(), 0);
    let until_probe = bench.circuit.admit(bench.now).unwrap_err();
    assert!(
        (MS * 50..=MS * 100).contains(&until_probe),
        "{until_probe:?}"
    );
    bench.wait(100);
    assert_eq!(
        bench.circuit.admit(bench.now),
        Err(Duration::ZERO),
        "the probe is due"
    );
}

#[tokio::test(start_paused = true)]
async fn pauses_double_up_to_the_longest_and_half_of_each_is_jitter() {
    let mut bench = Bench::new(BreakerSettings::new());
    bench.open();
    for longest in [100, 200, 400, 800, 1_000, 1_000, 1_000] {
        let pause = bench.circuit.next().unwrap() - bench.now;
        assert!(
            (MS * longest / 2..=MS * longest).contains(&pause),
            "{longest}: {pause:?}"
        );
        bench.probe(false);
    }
    let pauses: std::collections::BTreeSet<_> = (0..20)
        .map(|_| {
            let mut bench = Bench::new(BreakerSettings::new());
            bench.open();
            bench.circuit.next().unwrap() - bench.now
        })
        .collect();
    assert!(pauses.len() > 10, "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn it_closes_with_a_growing_share() {
    let mut bench = Bench::new(BreakerSettings::new());
    bench.open();
    bench.probe(true);
    let mut sent = Vec::new();
    for _ in 0..6 {
        sent.push(bench.admitted());
        assert_eq!(bench.circuit.close(bench.now).is_some(), sent.len() == 6);
        bench.wait(100);
    }
    for (sent, share) in sent.iter().zip([0, 200, 400, 600, 800, 1_000]) {
        assert!(sent.abs_diff(share) <= 5, "{sent} for {share}");
    }
    assert!(bench.circuit.is_closed());
    assert_eq!(bench.admitted(), 1_000);
}

#[tokio::test(start_paused = true)]
async fn failure_during_the_recovery_opens_it_for_longer() {
    let mut bench = Bench::new(BreakerSettings::new());
    bench.open();
    bench.probe(true);
    assert_eq!(bench.call(1, false), None);
    assert!(bench.call(1, true).is_some() && bench.is_open());
    let pause = bench.circuit.next().unwrap() - bench.now;
    assert!((MS * 100..=MS * 200).contains(&pause), "{pause:?}");
    // After a recovery that was complete, the first pause is short again.
    bench.probe(true);
    bench.wait(500);
    let (lasted, _) = bench.circuit.close(bench.now).unwrap();
    assert!(lasted > MS * 600, "{lasted:?}");
    bench.open();
    assert!(bench.circuit.next().unwrap() - bench.now <= MS * 100);
}

#[tokio::test(start_paused = true)]
async fn check_stands_in_for_an_overdue_probe() {
    for failed in [false, true] {
        let mut bench = Bench::new(BreakerSettings::new());
        bench.open();
        // The pause is 100 ms at most: jitter may leave it whole.
        bench.wait(1_101);
        assert_eq!(
            bench.admitted(),
            1,
            "one is sent, and no other for a second"
        );
        let begun = bench.circuit.begin(bench.now);
        bench.wait(10);
        bench.circuit.end(begun, failed, bench.now);
        assert_eq!(bench.is_open(), failed);
        if failed {
            assert!(bench.circuit.next().unwrap() > bench.now + MS * 99);
        } else {
            bench.wait(500);
            assert!(bench.circuit.close(bench.now).is_some());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn call_that_began_before_it_opened_does_not_open_it_again() {
    let mut bench = Bench::new(BreakerSettings::new());
    let early = bench.circuit.begin(bench.now);
    bench.open();
    let while_open = bench.circuit.begin(bench.now);
    assert_eq!(bench.circuit.end(while_open, true, bench.now), None);
    assert!(bench.is_open());
    bench.probe(true);
    for begun in [early, while_open] {
        assert_eq!(bench.circuit.end(begun, true, bench.now), None);
    }
    assert_eq!(bench.circuit.state(), BreakerState::HalfOpen);
}

#[tokio::test(start_paused = true)]
async fn outage_has_its_length_and_the_checks_that_were_not_sent() {
    let mut bench = Bench::new(BreakerSettings::new());
    bench.open();
    let opened_at = bench.now;
    assert_eq!(bench.admitted(), 0);
    bench.wait(900);
    assert!(bench.circuit.probe(bench.now));
    bench.circuit.probed(true, bench.now);
    bench.wait(500);
    let outage = bench.circuit.close(bench.now).unwrap();
    assert_eq!(outage, (bench.now - opened_at, 1_000));
}
