//! Suggestions for names that are unknown.

/// The least likeness of a suggestion, from 0 to 1.
const LEAST_LIKENESS: f64 = 0.75;

/// `did you mean ...?` with the known names that are most like a name, at most `most`. `None` if
/// none is like it.
///
/// A known name is as like it as the likest of its `parts`.
pub(crate) fn did_you_mean(
    name: &str,
    known: impl IntoIterator<Item = String>,
    parts: impl Fn(&str) -> [&str; 2],
    most: usize,
) -> Option<String> {
    let wanted = name.to_lowercase();
    let likeness = |known: &str| {
        let known = known.to_lowercase();
        let [one, other] = parts(&known).map(|part| strsim::jaro_winkler(part, &wanted));
        one.max(other)
    };
    let mut near: Vec<(f64, String)> = known
        .into_iter()
        .map(|known| (likeness(&known), known))
        .filter(|(likeness, _)| *likeness > LEAST_LIKENESS)
        .collect();
    near.sort_by(|one, other| other.0.total_cmp(&one.0));
    near.truncate(most);
    let names: Vec<_> = near.iter().map(|(_, name)| format!("`{name}`")).collect();
    (!names.is_empty()).then(|| format!("did you mean {}?", names.join(" or ")))
}
