//! Templates of routes, segment by segment.
//!
//! A template matches the paths that Axum's router, `matchit`, finds for it.

use std::borrow::Cow;

/// A segment of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Segment<'a> {
    Literal(Cow<'a, str>),
    /// A prefix, and then any text without a slash. At the end of a template it is not empty.
    Parameter(Cow<'a, str>),
    /// A prefix, and then all that is left of the path. It is not empty.
    Rest(Cow<'a, str>),
}

impl<'a> Segment<'a> {
    /// A segment in the syntax of Axum's router. A brace in a literal is doubled.
    fn parse(text: &'a str) -> Self {
        if !text.contains(['{', '}']) {
            return Self::Literal(Cow::Borrowed(text));
        }
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, brace) = rest.split_at(at);
            literal.push_str(before);
            let doubled = ["{{", "}}"]
                .into_iter()
                .find(|doubled| brace.starts_with(doubled));
            match doubled {
                Some(doubled) => {
                    literal.push_str(&doubled[1..]);
                    rest = &brace[2..];
                }
                None if brace.starts_with("{*") => return Self::Rest(literal.into()),
                None => return Self::Parameter(literal.into()),
            }
        }
        literal.push_str(rest);
        Self::Literal(literal.into())
    }

    pub(super) fn into_owned(self) -> Segment<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        match self {
            Self::Literal(text) => Segment::Literal(owned(text)),
            Self::Parameter(prefix) => Segment::Parameter(owned(prefix)),
            Self::Rest(prefix) => Segment::Rest(owned(prefix)),
        }
    }
}

/// The segments of a template.
pub(super) fn segments(template: &str) -> Vec<Segment<'_>> {
    let template = template.strip_prefix('/').unwrap_or(template);
    template.split('/').map(Segment::parse).collect()
}

/// Returns whether a template matches all paths that another one matches.
pub(super) fn covers(template: &[Segment<'_>], other: &[Segment<'_>]) -> bool {
    for (number, segment) in template.iter().enumerate() {
        let Some(theirs) = other.get(number) else {
            return false;
        };
        let is_covered = match (segment, theirs) {
            (Segment::Rest(prefix), Segment::Literal(literal)) => {
                return has_parameter(literal, prefix, is_last(number, other.len()));
            }
            (Segment::Rest(prefix), Segment::Parameter(theirs) | Segment::Rest(theirs)) => {
                return theirs.starts_with(&**prefix);
            }
            (Segment::Literal(literal), Segment::Literal(theirs)) => literal == theirs,
            (Segment::Parameter(prefix), Segment::Literal(theirs)) => {
                has_parameter(theirs, prefix, is_last(number, template.len()))
            }
            (Segment::Parameter(prefix), Segment::Parameter(theirs)) => {
                theirs.starts_with(&**prefix)
            }
            (Segment::Literal(_), Segment::Parameter(_) | Segment::Rest(_))
            | (Segment::Parameter(_), Segment::Rest(_)) => false,
        };
        if !is_covered {
            return false;
        }
    }
    template.len() == other.len()
}

/// Returns whether a segment starts with a prefix. In the last segment, text must follow.
fn has_parameter(segment: &str, prefix: &str, is_last: bool) -> bool {
    segment.starts_with(prefix) && (!is_last || segment.len() > prefix.len())
}

fn is_last(number: usize, of: usize) -> bool {
    number.saturating_add(1) == of
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Few letters, so that paths and templates often meet.
    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            Just(""),
            Just("a"),
            Just("b"),
            Just("ab"),
            Just("{"),
            Just("}"),
            Just("{a}")
        ]
        .prop_map(str::to_owned)
    }

    fn template() -> impl Strategy<Value = String> {
        let segment = (text(), 0..4_u8).prop_map(|(text, kind)| {
            let literal = text.replace('{', "{{").replace('}', "}}");
            match kind {
                0 | 1 => literal,
                2 => format!("{literal}{{p}}"),
                _ => format!("{literal}{{*p}}"),
            }
        });
        let segments = prop::collection::vec(segment, 1..4);
        // Parameters of one template have different names.
        segments.prop_map(|segments| {
            let numbered = segments.iter().enumerate();
            let named = numbered.map(|(at, segment)| segment.replace("p}", &format!("p{at}}}")));
            format!("/{}", named.collect::<Vec<_>>().join("/"))
        })
    }

    fn path() -> impl Strategy<Value = String> {
        prop::collection::vec(text(), 1..5).prop_map(|segments| format!("/{}", segments.join("/")))
    }

    fn router(template: &str) -> Option<matchit::Router<()>> {
        let mut router = matchit::Router::new();
        router.insert(template, ()).ok().map(|()| router)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8_000))]

        #[test]
        fn template_covers_no_path_that_it_does_not_match(
            one in template(),
            other in template(),
            path in path(),
        ) {
            let (Some(own), Some(theirs)) = (router(&one), router(&other)) else { return Ok(()) };
            let is_covered = covers(&segments(&one), &segments(&other));
            if is_covered && theirs.at(&path).is_ok() {
                let found = own.at(&path).is_ok();
                prop_assert!(found, "`{}` of `{}` is not of `{}`", path, other, one);
            }
        }
    }

    #[test]
    fn template_covers_itself_and_narrower_ones() {
        for (template, other) in [
            ("/users/{id}", "/users/{name}"),
            ("/users/{id}", "/users/42"),
            ("/{*all}", "/users/{id}/posts"),
            ("/public/{*path}", "/public/{a}/{*b}"),
            ("/{{x}}", "/{{x}}"),
            ("/v{version}", "/v1{minor}"),
        ] {
            assert!(
                covers(&segments(template), &segments(other)),
                "{template} {other}"
            );
        }
        for (template, other) in [
            ("/users/{id}", "/users/"),
            ("/public/{*path}", "/public/"),
            ("/{{x}}", "/users"),
            ("/{{x}}", "/{x}"),
            ("/v1{minor}", "/v{version}"),
            ("/{a}/{b}", "/{*all}"),
        ] {
            assert!(
                !covers(&segments(template), &segments(other)),
                "{template} {other}"
            );
        }
    }
}
