//! Asks a store from a worker, but spawns tasks on the main runtime: connections to Redis
//! and their timers belong to the process, not to the worker that asked first.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// Polls a future in the context of a runtime: what it spawns lives there.
pub(super) async fn at<F: Future>(home: Option<&Handle>, future: F) -> F::Output {
    let mut future = pin!(future);
    std::future::poll_fn(|cx: &mut Context<'_>| -> Poll<F::Output> {
        let _entered = home.map(Handle::enter);
        Pin::as_mut(&mut future).poll(cx)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn spawned_tasks_live_at_home() {
        let home = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("home")
            .enable_all()
            .build()
            .unwrap();
        let worker = Builder::new_current_thread().enable_all().build().unwrap();
        let handle = home.handle().clone();
        let name = worker.block_on(at(Some(&handle), async {
            let name = async { thread::current().name().map(str::to_owned) };
            tokio::spawn(name).await.unwrap()
        }));
        assert_eq!(name.as_deref(), Some("home"));
    }
}
