//! Both stores answer the sequences in `tests/vectors` as expected.

#![cfg(feature = "serde")]

#[cfg(feature = "redis")]
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::clock::ManualClock;
use tollgate::decision::{Receipt, Verdict};
use tollgate::store::Store;
use tollgate::{Check, Decision, Key, Limit, MemoryStore};

use crate::support::op::Op;

/// The sequences, with the names of their files.
fn vectors() -> Vec<(String, Vec<Value>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let mut vectors: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "jsonl")
        })
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            let lines = text
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            (
                path.file_stem().unwrap().to_string_lossy().into_owned(),
                lines,
            )
        })
        .collect();
    vectors.sort_by(|a, b| a.0.cmp(&b.0));
    #[cfg(not(feature = "calendar"))]
    vectors.retain(|(name, _)| !name.starts_with("calendar_"));
    assert!(vectors.len() >= 10, "the vectors are there");
    vectors
}

fn in_json(verdict: &Verdict) -> Value {
    let micros = |duration: Duration| duration.as_micros() as u64;
    let mut line = json!({
        "allowed": verdict.allowed(),
        "limit": verdict.capacity(),
        "remaining": verdict.remaining(),
        "retry_after_us": verdict.retry_after().map(micros),
        "reset_after_us": micros(verdict.reset_after()),
        "delay_us": micros(verdict.delay()),
        "never": verdict.exceeds_capacity(),
    });
    if verdict.would_deny() {
        line["would_deny"] = json!(true);
    }
    if verdict.is_blocked() {
        line["blocked"] = json!(true);
    }
    line
}

fn in_json_as_printed(limits: &[Limit], decision: &Decision) -> Value {
    let mut line = in_json(decision.deciding());
    line["delay_us"] = json!(decision.delay().as_micros() as u64);
    let receipt = decision.receipt().unwrap_or_default();
    let drains_at = receipt.drains_at();
    let full_at = decision.decided_at() + decision.verdicts()[0].reset_after();
    if ![Duration::ZERO, full_at].contains(&drains_at) {
        line["drains_at_us"] = json!(drains_at.as_micros() as u64);
    }
    if limits.len() > 1 {
        let pairs = limits.iter().zip(decision.verdicts());
        let each = pairs.map(|(limit, verdict)| {
            let mut each = in_json(verdict);
            each["name"] = json!(limit.name());
            each
        });
        line["limits"] = each.collect();
    }
    line
}

/// The format of limits in the vectors: the period in microseconds, or a quota of the calendar as a
/// text, sub-windows as `cells`, shadow mode as `shadow`.
fn parse(json: &Value) -> Limit {
    let mut fields = json.as_object().unwrap().clone();
    if let Some(micros) = fields.remove("period_us") {
        let limit = fields.remove("limit").unwrap();
        fields.insert("quota".to_owned(), json!(format!("{limit}/{micros}us")));
    }
    if let Some(sub_windows) = fields.remove("cells") {
        fields.insert("sub_windows".to_owned(), sub_windows);
    }
    if fields.remove("shadow") == Some(json!(true)) {
        fields.insert("shadow_percent".to_owned(), json!(100));
    }
    serde_json::from_value(fields.into()).unwrap()
}

async fn replay(mut store: impl FnMut(&str, ManualClock) -> Box<dyn Store>) {
    for (name, lines) in vectors() {
        let clock = ManualClock::new();
        let store = store(&name, clock.clone());
        let mut limits: Vec<Limit> = lines[0]["limits"]
            .as_array()
            .unwrap()
            .iter()
            .map(parse)
            .collect();
        for (number, line) in lines.iter().enumerate().skip(1) {
            if let Some(changed) = line.get("limit").map(parse) {
                let place = limits
                    .iter_mut()
                    .find(|limit| limit.name() == changed.name());
                *place.unwrap() = changed;
            }
            clock.set(Duration::from_micros(line["at_us"].as_u64().unwrap()));
            let key = Key::new(line["key"].as_str().unwrap());
            let cost = u32::try_from(line["cost"].as_u64().unwrap()).unwrap();
            let receipt = line.get("receipt").map(|it| {
                let cost = u32::try_from(it["cost"].as_u64().unwrap()).unwrap();
                let at = |us: &Value| Duration::from_micros(us.as_u64().unwrap_or(0));
                Receipt::new(at(&it["at_us"]), cost).with_drains_at(at(&it["drains_at_us"]))
            });
            let max_wait = Duration::from_micros(line["max_wait_us"].as_u64().unwrap_or(0));
            let block = Duration::from_micros(line["block_us"].as_u64().unwrap_or(0));
            let op = match line["op"].as_str().unwrap() {
                "charge" => Op::Charge,
                "peek" => Op::Peek,
                "refund" => Op::Refund,
                "settle" => Op::Settle,
                "reset" => Op::Reset,
                "block" => Op::Block,
                other => panic!("{other} is no operation"),
            };
            let check = |limit| {
                Check::new(limit, &key)
                    .with_cost(cost)
                    .with_max_wait(max_wait)
            };
            let group = limits.iter().map(check).collect();
            let operations = op.on_group(group, vec![receipt; limits.len()], block);
            let mut verdicts = Vec::new();
            let mut decided_at = Duration::ZERO;
            for operation in operations {
                let decision = store.apply(operation).await.unwrap();
                verdicts.extend_from_slice(decision.verdicts());
                decided_at = decision.decided_at();
            }
            let decision = Decision::of_group(verdicts).unwrap().made_at(decided_at);
            let answer = in_json_as_printed(&limits, &decision);
            assert_eq!(answer, line["expect"], "{name}.jsonl, line {}", number + 1);
        }
    }
}

#[tokio::test]
async fn embedded_store_answers_as_expected() {
    replay(|_, clock| Box::new(MemoryStore::with_clock(clock))).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn redis_answers_as_expected() {
    let server = crate::support::RedisServer::start();
    replay(|name, clock| {
        let builder = server.store_of(name);
        Box::new(builder.clock(clock).build().unwrap())
    })
    .await;
}
