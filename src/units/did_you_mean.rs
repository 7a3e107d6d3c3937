//! Suggestions for names that are unknown.

/// The least likeness of a suggestion, from 0 to 1.
const LEAST_LIKENESS: f64 = 0.75;

/// `did you mean ...?` with the known names that are most like a name, at most `most`. `None` if
/// none is like it.
///
/// A known name comes with the text that is compared, and may come with several.
pub(crate) fn did_you_mean(
    name: &str,
    known: impl IntoIterator<Item = (String, String)>,
    most: usize,
) -> Option<String> {
    let wanted = name.to_lowercase();
    let likeness = |text: &str| strsim::jaro_winkler(&text.to_lowercase(), &wanted);
    let mut near: Vec<(f64, String)> = known
        .into_iter()
        .map(|(text, name)| (likeness(&text), name))
        .filter(|(likeness, _)| *likeness > LEAST_LIKENESS)
        .collect();
    near.sort_by(|one, other| other.0.total_cmp(&one.0));
    let mut names = Vec::new();
    for (_, name) in near {
        let name = format!("`{name}`");
        if names.len() < most && !names.contains(&name) {
            names.push(name);
        }
    }
    (!names.is_empty()).then(|| format!("did you mean {}?", names.join(" or ")))
}
