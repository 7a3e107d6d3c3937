//! Processes side by side on one Redis, as the replicas of a service.

use crate::child::{self, Child, Job};
use crate::contenders::Contender;
use crate::load::Load;
use crate::sample::Sample;

/// One turn: `replicas` processes at the same time, and the sum of their figures.
pub async fn turn(job: &Job, replicas: usize) -> Sample {
    let mut children: Vec<_> = (0..replicas).map(|_| Child::start(job)).collect();
    for child in &mut children {
        let () = child.hear().await;
    }
    for child in &mut children {
        child.prompt().await;
    }
    let mut sum = Sample::default();
    for mut child in children {
        sum = sum.beside(child.hear().await);
        child.end().await;
    }
    sum
}

/// A replica's side.
pub async fn run(contender: &Contender, job: Job, load: Load) {
    child::say(&());
    if child::is_prompted() {
        child::say(&contender.measure(job.setup, load).await);
    }
}
