//! `tollgate doctor`: whether a Redis is fit for rate limiting.

mod checks;
mod limits;

use std::borrow::Cow;
use std::process::ExitCode;

use serde::Serialize;
use tollgate::RedisStore;
use tollgate::overrides::{Override, Overrides};

use super::services::Services;
use super::{Certificates, servers};
use crate::arguments::DoctorArguments;
use crate::output::{self, explained, printable, shown};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    Good,
    /// It works, and could be better.
    Advice,
    Problem,
}

#[derive(Debug, Serialize)]
struct Finding {
    server: String,
    about: &'static str,
    level: Level,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<Cow<'static, str>>,
}

/// The findings of one server.
struct Findings {
    server: String,
    all: Vec<Finding>,
}

impl Findings {
    fn add(
        &mut self,
        about: &'static str,
        level: Level,
        found: String,
        advice: Option<Cow<'static, str>>,
    ) {
        let server = self.server.clone();
        self.all.push(Finding {
            server,
            about,
            level,
            found,
            advice,
        });
    }

    fn good(&mut self, about: &'static str, found: impl Into<String>) {
        self.add(about, Level::Good, found.into(), None);
    }

    fn advice(&mut self, about: &'static str, found: impl Into<String>, advice: &'static str) {
        self.add(about, Level::Advice, found.into(), Some(advice.into()));
    }

    fn problem(&mut self, about: &'static str, found: impl Into<String>, advice: &'static str) {
        self.add(about, Level::Problem, found.into(), Some(advice.into()));
    }
}

pub(crate) async fn run(arguments: DoctorArguments) -> anyhow::Result<ExitCode> {
    let servers = match servers::connect_each(&arguments.url, &arguments.tls).await {
        Ok(servers) => servers,
        Err(error) => vec![Err(error)],
    };
    let mut all = Vec::new();
    let mut library = Findings {
        server: "tollgate".to_owned(),
        all: Vec::new(),
    };
    for server in servers {
        match server {
            Ok(mut server) => {
                let mut findings = Findings {
                    server: server.address.clone(),
                    all: Vec::new(),
                };
                checks::examine(&mut server, &arguments, &mut findings).await;
                all.extend(findings.all);
            }
            Err(error) => {
                let advice = "check the URL, the network, the login, and the certificates";
                library.problem("connection", explained(&error), advice);
            }
        }
    }
    // Also without a connection: the library says why a server closes it.
    start(&arguments, &mut library).await;
    all.extend(library.all);
    if arguments.json {
        output::print(&output::json(&all, true)?)?;
    } else {
        output::print(&text(&all))?;
    }
    let has_problem = all.iter().any(|it| it.level == Level::Problem);
    Ok(if has_problem {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// The most names of limits in a finding.
const MOST_NAMES: usize = 5;

/// The names of overrides that no running service has a limit of.
fn unknown_limits(list: &[Override], services: &Services) -> Vec<String> {
    let names = list.iter().map(Override::limit_name);
    let mut names: Vec<_> = names.filter(|name| !services.may_have(name)).collect();
    names.sort_unstable();
    names.dedup();
    names.truncate(MOST_NAMES);
    names.into_iter().map(shown).collect()
}

/// Reads the overrides of clients, as a service that follows them does.
async fn overrides(store: &RedisStore, services: &Services, findings: &mut Findings) {
    let read = match Overrides::in_redis(store) {
        Ok(overrides) => overrides.list().await,
        Err(error) => Err(error.into()),
    };
    match read {
        Ok(list) => match unknown_limits(&list, services) {
            names if names.is_empty() => {
                findings.good("overrides", format!("{} set", list.len()));
            }
            names => {
                let advice = "check the name. Services note the limits that they register, and few \
                              of the others";
                let found = format!(
                    "{} set, also under {}, which no running service has noted",
                    list.len(),
                    names.join(", ")
                );
                findings.advice("overrides", found, advice);
            }
        },
        Err(error) => {
            let advice = "a service that follows overrides has to read them, with the rights in the \
                          guide. `tollgate override` sets exceptions for single clients";
            findings.advice("overrides", error.to_string(), advice);
        }
    }
}

/// Starts as a service does: it loads the script, and runs each command that the script needs.
async fn start(arguments: &DoctorArguments, findings: &mut Findings) {
    let prefix = arguments.prefix.trim_end_matches(':');
    let certificates = Certificates::read(&arguments.tls, &arguments.url);
    let mut store = RedisStore::builder(prefix).url(&arguments.url);
    // A file that cannot be read was reported before.
    if let Some(tls) = certificates.ok().and_then(Certificates::of_library) {
        store = store.tls(tls);
    }
    match store.connect().await {
        Ok(store) => {
            findings.good(
                "start",
                "a service can start, and this user has the rights it needs",
            );
            let services = Services::find(&arguments.url, &arguments.tls, prefix).await;
            overrides(&store, &services, findings).await;
        }
        Err(error) => {
            let advice = "a service that connects at its start does not start";
            findings.problem("start", error.to_string(), advice);
        }
    }
}

fn text(all: &[Finding]) -> String {
    let (mut lines, mut server) = (Vec::new(), "");
    for it in all {
        if it.server != server {
            server = &it.server;
            lines.push(printable(server));
        }
        let mark = match it.level {
            Level::Good => "ok     ",
            Level::Advice => "advice ",
            Level::Problem => "PROBLEM",
        };
        lines.push(format!("  {mark}  {}: {}", it.about, printable(&it.found)));
        lines.extend(
            it.advice
                .as_ref()
                .map(|advice| format!("           -> {advice}")),
        );
    }
    lines.join("\n")
}
