//! Suggestions for names that are unknown.

/// Less alike names are not suggested.
const ALIKE: f64 = 0.75;

/// `did you mean ...?` with the known names that are most like a name, at most `most`. `None` if
/// none is like it.
///
/// The last part of a path counts as a name of its own, so that `Berlin` finds `Europe/Berlin`.
pub(crate) fn did_you_mean(
    name: &str,
    known: impl IntoIterator<Item = String>,
    most: usize,
) -> Option<String> {
    let wanted = name.to_lowercase();
    let likeness = |known: &str| {
        let known = known.to_lowercase();
        let last_part = known.rsplit('/').next().unwrap_or_default();
        strsim::jaro_winkler(&known, &wanted).max(strsim::jaro_winkler(last_part, &wanted))
    };
    let mut near: Vec<(f64, String)> = known
        .into_iter()
        .map(|known| (likeness(&known), known))
        .filter(|(likeness, _)| *likeness > ALIKE)
        .collect();
    near.sort_by(|one, other| other.0.total_cmp(&one.0));
    near.truncate(most);
    let names: Vec<_> = near.iter().map(|(_, name)| format!("`{name}`")).collect();
    (!names.is_empty()).then(|| format!("did you mean {}?", names.join(" or ")))
}
