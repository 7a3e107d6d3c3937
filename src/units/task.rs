//! Tasks that do not keep what they work for, and tell it when they end.

use std::sync::Arc;

use tokio::runtime::Handle as Runtime;

/// Calls a function when this is dropped.
struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

/// Spawns a task. `end` is called when it ends, whether it returns, panics, or is dropped with its
/// runtime, unless the `owner` is gone.
pub(crate) fn spawn_for<T: Send + Sync + 'static>(
    owner: &Arc<T>,
    runtime: &Runtime,
    end: impl FnOnce(&T) + Send + 'static,
    task: impl Future<Output = ()> + Send + 'static,
) {
    let owner = Arc::downgrade(owner);
    let end = OnDrop(Some(move || {
        if let Some(owner) = owner.upgrade() {
            end(&owner);
        }
    }));
    runtime.spawn(async move {
        let _end = end;
        task.await;
    });
}
