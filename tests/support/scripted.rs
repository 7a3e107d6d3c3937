//! A store in memory that does what a script says.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::time::sleep;
use tollgate::limit::Algorithm;
use tollgate::store::{Answer, Operation, Store};
use tollgate::{Check, ConfigError, Error, Key, Limit, MemoryStore};

/// The answer of a store to an operation. The script may ask the memory, now or later.
type Script = dyn Fn(&Arc<MemoryStore>, Operation) -> Answer + Send + Sync;

/// An embedded store that counts its calls, and does what its script says: at first, what the
/// memory does. Clones share one store, as replicas do. Unlike the memory, it can be unavailable,
/// unless it promises that it never is.
#[derive(Clone)]
pub struct Scripted {
    memory: Arc<MemoryStore>,
    asked: Arc<AtomicU32>,
    script: Arc<RwLock<Arc<Script>>>,
    grants_permits: bool,
    is_embedded: bool,
}

impl Default for Scripted {
    fn default() -> Self {
        Self::new(decide)
    }
}

impl Scripted {
    pub fn new(
        script: impl Fn(&Arc<MemoryStore>, Operation) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::on(MemoryStore::new(), script)
    }

    /// A store on this memory.
    pub fn on(
        memory: MemoryStore,
        script: impl Fn(&Arc<MemoryStore>, Operation) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self {
            memory: Arc::new(memory),
            asked: Arc::default(),
            script: Arc::new(RwLock::new(Arc::new(script))),
            grants_permits: true,
            is_embedded: false,
        }
    }

    /// A store that fails every check.
    pub fn failing(error: impl Fn() -> Error + Send + Sync + 'static) -> Self {
        Self::new(move |_, _| Answer::ready(Err(error())))
    }

    /// A store that is asked at once, and answers `after` so long.
    pub fn answering(after: Duration) -> Self {
        Self::new(move |memory, operation| late(after, memory.apply(operation)))
    }

    /// A store that asks the memory only `after` a delay for the operations that `late` selects, as
    /// over a slow network.
    pub fn asked_late(
        after: Duration,
        late: impl Fn(&Operation) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::new(move |memory, operation| match late(&operation) {
            true => ask_after(after, memory, operation),
            false => memory.apply(operation),
        })
    }

    /// Promises that it is always available, as a wrapper of an embedded store does, or does not.
    pub fn embedded(self, is_embedded: bool) -> Self {
        Self {
            is_embedded,
            ..self
        }
    }

    /// Turns concurrency limits down.
    pub fn without_permits(self) -> Self {
        Self {
            grants_permits: false,
            ..self
        }
    }

    /// Does this from now on.
    pub fn does(
        &self,
        script: impl Fn(&Arc<MemoryStore>, Operation) -> Answer + Send + Sync + 'static,
    ) {
        *self.script.write().unwrap() = Arc::new(script);
    }

    /// Makes the store unavailable, or available again.
    pub fn switch_off(&self, off: bool) {
        match off {
            true => self.does(|_, _| Answer::ready(Err(Error::unreachable("it is away")))),
            false => self.does(decide),
        }
    }

    /// The number of calls since this was last read.
    pub fn asked(&self) -> u32 {
        self.asked.swap(0, Ordering::SeqCst)
    }

    /// The units that the store has charged. This call is not counted.
    pub async fn used(&self, limit: &Limit, key: &Key) -> u64 {
        let left = self
            .memory
            .apply(Operation::Peek(Check::new(limit, key).with_cost(0).into()))
            .await
            .unwrap();
        limit.quota().capacity() - left.remaining()
    }
}

/// Answers as the memory does.
pub fn decide(memory: &Arc<MemoryStore>, operation: Operation) -> Answer {
    memory.apply(operation)
}

/// An answer that comes so long after the decision.
pub fn late(after: Duration, answer: Answer) -> Answer {
    Answer::later(async move {
        sleep(after).await;
        answer.await
    })
}

/// The answer of a memory that is asked only after so long.
pub fn ask_after(after: Duration, memory: &Arc<MemoryStore>, operation: Operation) -> Answer {
    let memory = Arc::clone(memory);
    Answer::later(async move {
        sleep(after).await;
        memory.apply(operation).await
    })
}

/// A hung store: it fails at its deadline.
pub fn time_out_after(deadline: Duration) -> Answer {
    Answer::later(async move {
        sleep(deadline).await;
        Err(Error::timeout())
    })
}

impl Store for Scripted {
    fn apply(&self, operation: Operation) -> Answer {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let script = Arc::clone(&self.script.read().unwrap());
        script(&self.memory, operation)
    }

    fn is_embedded(&self) -> bool {
        self.is_embedded
    }

    fn check_limits(&self, limits: &[&Limit]) -> Result<(), ConfigError> {
        let are_claimed = limits
            .iter()
            .any(|limit| limit.algorithm() == Algorithm::Concurrency);
        if are_claimed && !self.grants_permits {
            return Err(ConfigError::new("the store grants no permits"));
        }
        Ok(())
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted").finish_non_exhaustive()
    }
}
