//! `check-config`, and what is generated from the command line.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use self::support::tollgate;

fn example(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    folder.join(name).display().to_string()
}

#[test]
fn files_of_the_examples_are_valid_and_shown_as_a_table() {
    for name in ["limits.toml", "limits.yaml"] {
        let run = tollgate(&["check-config", &example(name)]);
        assert_eq!(run.code, 0, "{run:?}");
        for part in [
            "| search  | sliding_window 5/10s",
            "GET /search",
            "all except /health",
            "2 at once",
            "user, else client_ip",
            "plans = closed denied (this account is closed); internal unlimited; pro 50/10s",
            "any other plan = as the limit",
            "keys that the application has to name: client_ip, user",
            "plans that the application has to name: account",
            "valid: 5 limits",
        ] {
            assert!(run.out.contains(part), "{part}: {}", run.out);
        }
    }
    let json = tollgate(&["check-config", &example("limits.toml"), "--json"]).json();
    assert_eq!(
        (&json["valid"], &json["limits"][1]["name"]),
        (&true.into(), &"search".into())
    );
}

#[test]
fn error_names_the_line_and_the_field() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    for (name, text, parts) in [
        (
            "quota.toml",
            "[[limits]]\nname = \"api\"\nalgorithm = \"gcra\"\nquota = \"10\"\nkey = \"peer_ip\"\n",
            &["quota.toml:4", "limits[0].quota", "slash"][..],
        ),
        (
            "burst.toml",
            "[[limits]]\nname = \"api\"\nalgorithm = \"sliding_log\"\n\
             quota = \"10/s\"\nburst = 2\nkey = \"peer_ip\"\n",
            &["burst.toml", "burst"],
        ),
        (
            "path.toml",
            "[[limits]]\nname = \"api\"\nalgorithm = \"gcra\"\n\
             quota = \"10/s\"\nkey = \"peer_ip\"\nmatch = { path = \"/a/{\" }\n",
            &["path.toml", "/a/{"],
        ),
        ("limits.ini", "", &["limits.ini", "`.toml`"]),
    ] {
        let file = folder.join(name);
        fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        let run = tollgate(&["check-config", file]);
        assert_eq!(run.code, 1, "{run:?}");
        assert!(
            parts.iter().all(|part| run.err.contains(part)),
            "{parts:?}: {}",
            run.err
        );
        let json = tollgate(&["check-config", file, "--json"]).json();
        assert_eq!(json["valid"], false);
    }
    let missing = tollgate(&["check-config", "/no/such/limits.toml"]);
    assert!(
        missing.code == 1 && missing.err.contains("/no/such/limits.toml"),
        "{missing:?}"
    );
}

const COMMANDS: [&str; 12] = [
    "replay",
    "keys",
    "show",
    "top",
    "usage",
    "peek",
    "reset",
    "block",
    "unblock",
    "copy",
    "doctor",
    "check-config",
];

#[test]
fn man_pages_and_completions_name_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let run = tollgate(&["completions", shell]);
        assert_eq!(run.code, 0, "{run:?}");
        assert!(
            COMMANDS.iter().all(|command| run.out.contains(command)),
            "{shell}"
        );
    }
    let page = tollgate(&["man"]).out;
    assert!(page.contains(".TH tollgate"), "{page}");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("man");
    assert_eq!(tollgate(&["man", folder.to_str().unwrap()]).code, 0);
    for command in COMMANDS {
        let page = fs::read_to_string(folder.join(format!("tollgate-{command}.1"))).unwrap();
        assert!(page.contains(".TH"), "{command}");
    }
}

#[test]
fn every_command_explains_itself() {
    let help = tollgate(&["help"]);
    for command in COMMANDS {
        assert!(help.out.contains(command), "{command}");
        let run = tollgate(&[command, "--help"]);
        assert!(
            run.code == 0 && run.out.contains("Usage: tollgate"),
            "{run:?}"
        );
    }
    let unknown = tollgate(&["replya"]);
    assert!(
        unknown.code == 2 && unknown.err.contains("replay"),
        "{unknown:?}"
    );
}

#[test]
fn check_config_warns_of_overrides_in_another_period_and_of_ended_ones() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    let text = "[[limits]]\nname = 'billed'\nalgorithm = 'fixed_window'\n\
                quota = '1000/month'\nkey = 'peer_ip'\n[limits.overrides]\n\
                a = { quota = '5/min' }\nb = { quota = '50000/30d' }\n\
                c = { quota = '50000/month' }\nd = { unlimited = true, until = '2020-01-01' }\n\
                e = { deny = 'closed', until = '2150-01-01T18:00:00+01:00' }\n\
                [[limits]]\nname = 'daily'\nalgorithm = 'fixed_window'\n\
                quota = '500/day'\ntime_zone = 'Europe/Berlin'\nkey = 'peer_ip'\n\
                [limits.overrides]\na = { quota = '900/week' }\nb = { quota = '900/day' }\n\
                c = { unlimited = true, until = '2020-01-01T00:00:00' }\n";
    std::fs::write(&file, text).unwrap();
    let run = tollgate(&["check-config", file.to_str().unwrap()]);
    assert_eq!(run.code, 0);
    let warnings: Vec<_> = run.err.lines().collect();
    let start = "warning: the override of";
    let per = "the limit counts per";
    assert_eq!(
        warnings,
        [
            format!("{start} `a` under `billed` is 5 per 1m, and {per} month of the calendar"),
            format!("{start} `b` under `billed` is 50000 per 30d, and {per} month of the calendar"),
            format!("{start} `d` under `billed` has ended"),
            format!("{start} `a` under `daily` is 900 per 7d, and {per} day of the calendar"),
            format!("{start} `c` under `daily` has ended"),
        ]
    );
}

#[test]
fn check_config_warns_of_a_log_that_takes_megabytes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    let text = "[[limits]]\nname = 'calls'\nalgorithm = 'sliding_log'\n\
                quota = '1000/day'\nkey = 'peer_ip'\n\
                plan = 'tier'\nplans = { pro = { quota = '1000000/day' } }\n";
    std::fs::write(&file, text).unwrap();
    let run = tollgate(&["check-config", file.to_str().unwrap()]);
    assert_eq!(run.code, 0);
    assert!(
        run.err
            .contains("`calls` is a log of up to 1000000 requests for each client, about 6 MB")
    );
    std::fs::write(&file, text.replace("1000000", "2000")).unwrap();
    let run = tollgate(&["check-config", file.to_str().unwrap(), "--json"]);
    assert_eq!(run.json()["warnings"].as_array().unwrap().len(), 0);
}
