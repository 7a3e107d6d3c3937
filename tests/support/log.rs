//! The crate's log events on one thread.

use std::io::{self, Write};
use std::mem;
use std::sync::{Arc, Mutex, Once};

use tracing::subscriber::DefaultGuard;

/// Other tests run without a subscriber. Where one of them first comes to an event or a span,
/// `tracing` may take it for disabled on all threads. A subscriber for all threads keeps it from
/// that.
pub fn subscribe_everywhere() {
    static EVERYWHERE: Once = Once::new();
    EVERYWHERE.call_once(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(io::sink)
            .finish();
        let _ = tracing::subscriber::set_global_default(subscriber);
    });
}

#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Logs until the guard is dropped.
    pub fn start() -> (Self, DefaultGuard) {
        subscribe_everywhere();
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// The lines of this crate since the last call.
    pub fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(mem::take(&mut self.0.lock().unwrap())).unwrap();
        text.lines()
            .filter(|line| line.contains(" tollgate: "))
            .map(str::to_owned)
            .collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
