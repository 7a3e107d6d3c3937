//! All orders of what can happen to two replicas with accounts of one budget: checks, threads that
//! are stopped in the middle, requests and answers that are late, lost or doubled, resets,
//! evictions, clocks that run slower, and the end of the window. In each of them, at most the limit
//! passes in a window.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::super::accounts::Account;
use super::super::decided::DecidedHere;
use super::super::prepaid::account::{Block, PrepaidAccount, WindowReport};
use super::explorer::Explorer;
use crate::algorithm::{Cost, Effect, FixedWindow, State};
use crate::model::Limit;
use crate::units::{CompactInstant, Quota, Timestamp};

const TICK: u64 = 100_000;

/// So many things of a kind happen in a history.
#[derive(Clone, Copy)]
struct WorldBounds {
    limit: u64,
    /// The length of a window, and of a history.
    window: u64,
    ticks: u64,
    /// Requests and answers on their way at once.
    messages: usize,
    /// Checks for which the store is asked.
    asks: u8,
    /// Groups that hold units while the store is asked.
    holds: u8,
    doubled: u8,
    resets: u8,
    replicas: usize,
}

#[derive(Clone, Debug)]
struct World {
    /// In ticks.
    now: u64,
    state: Option<State>,
    accounts: Vec<Option<PrepaidAccount>>,
    /// Units that were taken for a group of which another part is asked for.
    held: Vec<Option<DecidedHere>>,
    /// Set if they were taken before a reset was answered. They may pass all the same.
    held_before_reset: bool,
    /// Numbers accounts and blocks.
    numbers: u64,
    holds: u8,
    messages: Vec<Message>,
    /// The units that passed in the window of now.
    passed: u64,
    asks: u8,
    doubled: u8,
    resets: u8,
}

#[derive(Clone, Debug, Hash)]
struct Message {
    replica: usize,
    sent: CompactInstant,
    what: What,
}

#[derive(Clone, Debug, Hash)]
enum What {
    /// A check of one unit.
    Ask,
    Block(Block),
    Reset,
    /// The answer to a check, or to a charge of a block.
    Answer(Option<Block>, WindowReport),
    ResetDone,
}

#[derive(Clone, Copy, Debug)]
#[expect(dead_code, reason = "the history of a failure shows it")]
enum WorldEvent {
    Tick,
    Spends { replica: usize, after_a_pause: bool },
    Asks(usize),
    Evicts(usize),
    Resets(usize),
    Holds(usize),
    PutsBack(usize),
    PassesHeld(usize),
    Arrives(usize),
    ArrivesAndWillAgain(usize),
    IsLost(usize),
}

struct Model {
    bounds: WorldBounds,
    limit: Limit,
    rule: FixedWindow,
    started: CompactInstant,
}

impl Model {
    fn new(bounds: WorldBounds) -> Self {
        let quota = Quota::new(bounds.limit, Duration::from_micros(bounds.window * TICK));
        let limit = Limit::fixed_window_aligned("api", quota)
            .and_then(Limit::asynchronous)
            .unwrap();
        let rule = *limit.charged_ahead().unwrap();
        Self {
            bounds,
            limit,
            rule,
            started: CompactInstant::now(),
        }
    }

    /// The clock of a replica. The first one loses a thousandth.
    fn local(&self, replica: usize, now: u64) -> CompactInstant {
        let real = now * TICK;
        let lost = if replica == 0 { real / 1_000 } else { 0 };
        self.started + Duration::from_micros(real - lost)
    }

    /// All worlds after one more event.
    fn next(&self, world: &World) -> Vec<(WorldEvent, World)> {
        let mut next = Vec::new();
        for replica in 0..self.bounds.replicas {
            self.check(world, replica, false, &mut next);
            self.check(world, replica, true, &mut next);
            let now = self.local(replica, world.now);
            let evictable = world.accounts[replica]
                .as_ref()
                .is_some_and(|it| it.can_be_forgotten(now));
            if evictable {
                let mut after = world.clone();
                after.accounts[replica] = None;
                next.push((WorldEvent::Evicts(replica), after));
            }
            self.hold(world, replica, &mut next);
            if world.resets < self.bounds.resets && self.has_room(world) {
                let mut after = world.clone();
                after.resets += 1;
                self.send(&mut after, replica, What::Reset);
                next.push((WorldEvent::Resets(replica), after));
            }
        }
        for index in 0..world.messages.len() {
            let mut after = world.clone();
            let message = after.messages.remove(index);
            let mut lost = after.clone();
            if let What::Block(refill) | What::Answer(Some(refill), _) = message.what
                && let Some(account) = &mut lost.accounts[message.replica]
            {
                account.fail(refill, true, self.local(message.replica, world.now));
            }
            // Another message that is lost is the same as one that never arrives.
            if matches!(message.what, What::Block(_) | What::Answer(Some(_), _)) {
                next.push((WorldEvent::IsLost(index), lost));
            }
            if world.doubled < self.bounds.doubled && matches!(message.what, What::Answer(..)) {
                let mut twice = world.clone();
                twice.doubled += 1;
                self.arrive(&mut twice, message.clone());
                next.push((WorldEvent::ArrivesAndWillAgain(index), twice));
            }
            self.arrive(&mut after, message);
            next.push((WorldEvent::Arrives(index), after));
        }
        if world.now < self.bounds.ticks {
            let mut after = world.clone();
            self.tick(&mut after);
            next.push((WorldEvent::Tick, after));
        }
        next
    }

    /// A group takes units and has to ask for others, and is denied or allowed by the store later.
    fn hold(&self, world: &World, replica: usize, next: &mut Vec<(WorldEvent, World)>) {
        let now = self.local(replica, world.now);
        let Some(held) = world.held[replica] else {
            let mut after = world.clone();
            let account = after.accounts[replica].as_mut();
            after.held[replica] = account.and_then(|it| it.take_up_to(&self.rule, 2, || now));
            if after.held[replica].is_some() && world.holds < self.bounds.holds {
                after.holds += 1;
                next.push((WorldEvent::Holds(replica), after));
            }
            return;
        };
        let mut after = world.clone();
        after.held[replica] = None;
        after.held_before_reset = false;
        // A decision in another window is too late.
        if Timestamp::from_micros(world.now * TICK) < held.window.unwrap().ends {
            let mut passes = after.clone();
            if !world.held_before_reset {
                passes.passed += held.units;
            }
            next.push((WorldEvent::PassesHeld(replica), passes));
        }
        if let Some(account) = &mut after.accounts[replica] {
            account.put_back(&held);
        }
        next.push((WorldEvent::PutsBack(replica), after));
    }

    /// A check of one unit. With a pause, its thread is stopped before it reads the clock.
    fn check(
        &self,
        world: &World,
        replica: usize,
        pauses: bool,
        next: &mut Vec<(WorldEvent, World)>,
    ) {
        let mut after = world.clone();
        if pauses {
            if world.now == self.bounds.ticks {
                return;
            }
            // Nothing else happens meanwhile to the account, which is locked.
            self.tick(&mut after);
        }
        let clock = self.local(replica, after.now);
        let spent = after.accounts[replica]
            .as_mut()
            .and_then(|account| account.spend(&self.rule, 1, || clock));
        if spent.is_some() {
            after.passed += 1;
            self.refill(&mut after, replica);
            let after_a_pause = pauses;
            next.push((
                WorldEvent::Spends {
                    replica,
                    after_a_pause,
                },
                after,
            ));
        } else if !pauses && self.has_room(world) && world.asks < self.bounds.asks {
            after.asks += 1;
            self.send(&mut after, replica, What::Ask);
            next.push((WorldEvent::Asks(replica), after));
        }
    }

    fn refill(&self, world: &mut World, replica: usize) {
        let now = self.local(replica, world.now);
        let number = world.numbers;
        let refill = world.accounts[replica]
            .as_mut()
            .and_then(|account| account.next_block(&self.rule, || number, now));
        if let Some(refill) = refill {
            world.numbers += 1;
            self.send(world, replica, What::Block(refill));
        }
    }

    fn has_room(&self, world: &World) -> bool {
        world.messages.len() < self.bounds.messages
    }

    fn send(&self, world: &mut World, replica: usize, what: What) {
        let sent = self.local(replica, world.now);
        world.messages.push(Message {
            replica,
            sent,
            what,
        });
    }

    fn tick(&self, world: &mut World) {
        world.now += 1;
        if world.now.is_multiple_of(self.bounds.window) {
            world.passed = 0;
        }
    }

    fn arrive(&self, world: &mut World, message: Message) {
        let Message {
            replica,
            sent,
            what,
        } = message;
        let answer = match what {
            What::Ask => self.charge(world, 1, None, sent),
            What::Block(refill) => self.charge(world, refill.units.into(), Some(refill), sent),
            What::Reset => {
                world.state = None;
                What::ResetDone
            }
            What::ResetDone => {
                world.accounts[replica] = None;
                world.held_before_reset = world.held[replica].is_some();
                // All that was charged since the reset may have passed.
                world.passed = self.bounds.limit - self.left(world);
                return;
            }
            What::Answer(refill, mut report) => {
                report.answered = self.local(replica, world.now);
                self.hear(world, replica, refill, &report);
                return;
            }
        };
        world.messages.push(Message {
            replica,
            sent,
            what: answer,
        });
    }

    fn charge(
        &self,
        world: &mut World,
        units: u64,
        refill: Option<Block>,
        sent: CompactInstant,
    ) -> What {
        let now = Timestamp::from_micros(world.now * TICK);
        let rule = self.limit.rule();
        let outcome = rule.decide(&mut world.state, now, Cost::units(units), Effect::Commit);
        let charged = if outcome.allowed { units } else { 0 };
        if refill.is_none() {
            world.passed += charged;
        }
        let report = WindowReport {
            sent,
            answered: sent,
            as_of: now,
            ends_after: outcome.reset_after,
            left: outcome.remaining,
            charged,
        };
        What::Answer(refill, report)
    }

    fn hear(
        &self,
        world: &mut World,
        replica: usize,
        refill: Option<Block>,
        report: &WindowReport,
    ) {
        let number = world.numbers;
        world.numbers += 1;
        let account = &mut world.accounts[replica];
        match (refill, account) {
            (None, account @ None) => *account = Some(PrepaidAccount::new(number, report)),
            (None, Some(account)) => {
                account.note(report);
                self.refill(world, replica);
            }
            (Some(refill), Some(account)) if report.charged > 0 => {
                account.grant(refill, report);
            }
            (Some(refill), Some(account)) => account.fail(refill, false, report.answered),
            (Some(_), None) => {}
        }
    }

    /// The units that the store has left.
    fn left(&self, world: &World) -> u64 {
        let now = Timestamp::from_micros(world.now * TICK);
        let mut state = world.state.clone();
        let rule = self.limit.rule();
        rule.decide(&mut state, now, Cost::NONE, Effect::Dry)
            .remaining
    }

    /// The hash that tells a world from others.
    fn hash(&self, world: &World, hasher: &RandomState) -> u64 {
        let left = self.left(world);
        let counts = (
            world.passed,
            world.numbers,
            world.asks,
            world.doubled,
            world.resets,
        );
        let messages = (
            &world.messages,
            &world.held,
            world.held_before_reset,
            world.numbers,
        );
        hasher.hash_one((world.now, left, &world.accounts, messages, counts))
    }

    /// Goes through all worlds. Returns how many there are, and the most units that passed.
    fn explore(&self) -> (usize, u64) {
        let mut first = World {
            // The first window after the epoch.
            now: self.bounds.window,
            state: None,
            accounts: vec![None; self.bounds.replicas],
            messages: Vec::new(),
            passed: 0,
            held: vec![None; self.bounds.replicas],
            held_before_reset: false,
            numbers: 0,
            holds: 0,
            asks: 0,
            doubled: 0,
            resets: 0,
        };
        // Two checks were answered, so that a block is being charged.
        for _ in 0..2 {
            self.send(&mut first, 0, What::Ask);
            for _ in 0..2 {
                let message = first.messages.remove(0);
                self.arrive(&mut first, message);
            }
        }
        let hasher = RandomState::new();
        let most = Cell::new(0);
        let check = |world: &World| {
            most.set(most.get().max(world.passed));
            let is_resetting = world
                .messages
                .iter()
                .any(|message| matches!(message.what, What::ResetDone));
            match world.passed <= self.bounds.limit || is_resetting {
                true => Ok(()),
                false => Err(format!("{} units passed", world.passed)),
            }
        };
        let worlds = Explorer {
            next: |world: &World| self.next(world),
            hash: |world: &World| self.hash(world, &hasher),
            check,
        }
        .explore(first, usize::MAX);
        (worlds, most.get())
    }
}

const TWO_REPLICAS: WorldBounds = WorldBounds {
    limit: 6,
    window: 2,
    ticks: 4,
    messages: 2,
    asks: 3,
    holds: 0,
    doubled: 0,
    resets: 0,
    replicas: 2,
};

/// Goes through all worlds within bounds.
fn explore(bounds: WorldBounds) {
    let (worlds, most) = Model::new(bounds).explore();
    println!("{worlds} worlds");
    assert!(most >= bounds.limit, "all units can be used: {most}");
}

#[test]
fn two_replicas_pass_at_most_the_limit_in_a_window() {
    explore(TWO_REPLICAS);
}

#[test]
fn answers_that_come_twice_add_no_units() {
    explore(WorldBounds {
        asks: 2,
        doubled: 1,
        ..TWO_REPLICAS
    });
}

#[test]
fn units_that_a_group_holds_are_spent_in_their_window_or_put_back() {
    explore(WorldBounds {
        asks: 2,
        holds: 1,
        ..TWO_REPLICAS
    });
}

#[test]
fn units_from_before_a_reset_are_not_spent_after_it() {
    explore(WorldBounds {
        asks: 2,
        holds: 1,
        resets: 1,
        replicas: 1,
        messages: 3,
        ..TWO_REPLICAS
    });
}
