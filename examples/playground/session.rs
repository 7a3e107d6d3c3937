//! A tab: it sends commands, and gets the responses to its requests.

use std::future;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tollgate::store::Store;

use crate::limited::{Client, LimitedServices};
use crate::message::{Command, Event, Response, Settings};
use crate::outage::Reach;
use crate::traffic::{MOST, Sender, Traffic};

/// How often the tab gets what happened.
const FRAME: Duration = Duration::from_millis(50);

/// The most requests of a tab that wait for their responses, as in the queue of a leaky bucket.
const MOST_WAITING: usize = 5_000;

/// The most requests of one command.
const MOST_AT_ONCE: u32 = 200;

struct Session {
    budgets: Reach,
    store: &'static str,
    started: Instant,
    client: Client,
    /// With the settings that are in force.
    services: Option<(Settings, LimitedServices)>,
    traffic: Option<Traffic>,
    waiting: JoinSet<Response>,
    /// For the tab, with the next frame.
    events: Vec<Event>,
}

/// Serves a tab until it is closed.
pub(crate) async fn run(mut socket: WebSocket, budgets: Arc<dyn Store>, store: &'static str) {
    let mut session = Session {
        budgets: Reach::new(budgets),
        store,
        started: Instant::now(),
        client: Client(String::new()),
        services: None,
        traffic: None,
        waiting: JoinSet::new(),
        events: Vec::new(),
    };
    let mut frames = interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = socket.recv() => match message {
                Some(Ok(Message::Text(text))) => session.follow(&text).await,
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return,
            },
            senders = due(&mut session.traffic) => session.send(senders),
            Some(Ok(response)) = session.waiting.join_next() => {
                session.events.push(Event::Response(response));
            }
            _ = frames.tick() => {
                session.read_levels().await;
                let events = std::mem::take(&mut session.events);
                let Ok(text) = serde_json::to_string(&events) else { return };
                if socket.send(Message::Text(text.into())).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// The senders whose requests are due. Without traffic, none ever are.
async fn due(traffic: &mut Option<Traffic>) -> Vec<Sender> {
    match traffic {
        Some(traffic) => traffic.next().await,
        None => future::pending().await,
    }
}

impl Session {
    async fn follow(&mut self, text: &str) {
        match serde_json::from_str(text) {
            Ok(Command::Configure(settings)) => self.configure(&settings),
            Ok(Command::Send { count }) => {
                self.send(vec![Sender::Own; count.min(MOST_AT_ONCE) as usize]);
            }
            Ok(Command::Traffic {
                pattern,
                per_second,
            }) => {
                self.traffic = Traffic::new(pattern, per_second);
                if !(0.1..=MOST).contains(&per_second) {
                    self.reject(format!(
                        "{per_second} requests a second; use 0.1 to {MOST} requests a second"
                    ));
                }
            }
            Ok(Command::Reset) => self.reset().await,
            Ok(Command::Outage { is_on }) => self.budgets.cut_off(is_on),
            Err(error) => self.reject(format!("the page sent an invalid command: {error}")),
        }
    }

    fn reject(&mut self, message: String) {
        self.events.push(Event::Invalid { message });
    }

    /// Puts the settings in force, or leaves everything as it is.
    fn configure(&mut self, settings: &Settings) {
        if settings.client.is_empty() || settings.client.len() > 64 {
            return self.reject("the client's name is empty or long; use 1 to 64 bytes".to_owned());
        }
        if settings.algorithms.len() > 6 {
            return self.reject("there are six algorithms; choose each once".to_owned());
        }
        self.client = Client(settings.client.clone());
        // New services would have new shares in an outage.
        if self
            .services
            .as_ref()
            .is_some_and(|(before, _)| before.has_limits_of(settings))
        {
            return;
        }
        // A limiter has one limit of a name. Tabs choose their own, and share the budgets.
        match LimitedServices::new(&self.budgets, settings) {
            Ok(services) => {
                let described = services.describe(settings);
                self.events.push(Event::Configured {
                    store: self.store,
                    services: described,
                });
                self.services = Some((settings.clone(), services));
            }
            Err(error) => self.reject(error.to_string()),
        }
    }

    /// Sends a request of each sender to each service.
    fn send(&mut self, senders: Vec<Sender>) {
        let (started, arrived_ms) = (self.started, ms_since(self.started));
        for sender in senders {
            for service in self.services.iter().flat_map(|(_, services)| &services.all) {
                if self.waiting.len() >= MOST_WAITING {
                    let message = format!("{MOST_WAITING} requests wait; the others are not sent");
                    return self.reject(message);
                }
                let is_own = sender == Sender::Own;
                let client = match &sender {
                    Sender::Own => self.client.clone(),
                    Sender::Other(name) => Client(format!("{}/{name}", self.client.0)),
                };
                let service = service.clone();
                self.waiting.spawn(async move {
                    let answer = service.answer(client).await;
                    Response {
                        algorithm: service.algorithm,
                        is_own,
                        replica: answer.replica,
                        arrived_ms,
                        answered_ms: ms_since(started),
                        status: answer.status,
                        headers: answer.headers,
                        body: answer.body,
                        decided_by: answer.decided_by,
                        retry_after_ms: answer.retry_after.map(|it| it.as_secs_f64() * 1e3),
                    }
                });
            }
        }
    }

    async fn read_levels(&mut self) {
        let Some((_, services)) = &self.services else {
            return;
        };
        let remaining = services.remaining(&self.client).await;
        let at_ms = ms_since(self.started);
        self.events.push(Event::Levels { at_ms, remaining });
    }

    async fn reset(&mut self) {
        let Some((_, services)) = &self.services else {
            return;
        };
        match services.reset(&self.client).await {
            Err(_) if self.budgets.is_cut_off() => {
                self.reject("only the shares were reset: the store does not answer".to_owned());
            }
            Err(error) => self.reject(format!("the budgets were not reset: {error}")),
            Ok(()) => {}
        }
    }
}

fn ms_since(start: Instant) -> f64 {
    (start.elapsed().as_secs_f64() * 1e4).round() / 10.0
}
