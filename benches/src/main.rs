mod contenders;
mod cpu;
mod load;
mod redis_server;
mod users;

use contenders::Allowance;
use load::Load;
use std::time::Duration;

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let which = args.first().map(String::as_str).unwrap_or("redis");
    let conc: Vec<usize> = args
        .get(1)
        .map_or(vec![1, 64, 256], |s| s.split(',').map(|x| x.parse().unwrap()).collect());
    let keys: usize = args.get(2).map_or(10_000, |s| s.parse().unwrap());
    let rounds: usize = args.get(3).map_or(3, |s| s.parse().unwrap());
    let only = args.get(4).cloned().unwrap_or_default();
    let server = redis_server::Server::start();
    let plenty = if keys > 1 {
        Allowance { burst: 60_000, every_ms: 100 }
    } else {
        Allowance { burst: 100_000_000, every_ms: 1 }
    };
    for c in conc {
        let contenders = match which {
            "redis" => contenders::on_redis(&server),
            "algorithms" => contenders::algorithms_on_redis(&server),
            "three" => contenders::three_limits_on_redis(&server),
            _ => contenders::in_memory(),
        };
        for _ in 0..rounds {
            for contender in &contenders {
                if !contender.name.contains(&only) {
                    continue;
                }
                server.clear().await;
                let load = Load {
                    concurrency: c,
                    keys,
                    time: Duration::from_millis(
                        std::env::var("MS").map_or(600, |ms| ms.parse().unwrap()),
                    ),
                };
                let s = (contender.measure)(load, plenty).await;
                let per = |d: Duration| d.as_secs_f64() * 1e6 / s.decisions as f64;
                println!(
                    "{c:5} {:28} {:9.0}/s app {:6.2} redis {:6.2} p50 {:8.1} p99 {:8.1} admitted {}/{}",
                    contender.name,
                    s.decisions as f64 / s.wall.as_secs_f64(),
                    per(s.app_cpu),
                    per(s.redis_cpu),
                    s.latencies.value_at_quantile(0.5) as f64 / 1e3,
                    s.latencies.value_at_quantile(0.99) as f64 / 1e3,
                    s.admitted,
                    s.decisions
                );
            }
        }
    }
}
