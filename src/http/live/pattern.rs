//! The requests that a limit applies to: by method and route.

use std::borrow::Cow;

use http::Method;
use http::request::Parts;
use percent_encoding::percent_decode_str;

use crate::nouns::ConfigError;

/// Requests of some methods to a route.
#[derive(Clone)]
pub(super) struct Pattern {
    path: Option<Path>,
    /// All, if there are none.
    methods: Vec<Method>,
}

#[derive(Clone)]
struct Path {
    text: String,
    routes: matchit::Router<()>,
}

/// What patterns are compared with.
pub(super) struct Route<'a> {
    pub(super) method: Cow<'a, Method>,
    /// The template of the route that the router matched. Different spellings of a path have one.
    pub(super) template: Option<&'a str>,
    /// The path as it was sent.
    pub(super) sent: &'a str,
    /// What another part of the service may take the path for.
    pub(super) plain: Cow<'a, str>,
}

impl Pattern {
    /// Parses a path in the syntax of Axum's router, and methods.
    pub(super) fn new(path: Option<&str>, methods: &[String]) -> Result<Self, ConfigError> {
        let path = path.map(Path::parse).transpose()?;
        let methods = methods.iter().map(|name| method(name)).collect::<Result<_, _>>()?;
        Ok(Self { path, methods })
    }

    /// Whether this may be such a request: by its route, or by any spelling of its path. For limits: a client must not
    /// leave one by another spelling.
    pub(super) fn may_match(&self, route: &Route<'_>) -> bool {
        self.matches_method(&route.method)
            && self.path.as_ref().is_none_or(|path| {
                route.template.is_some_and(|template| path.matches(template))
                    || path.matches(route.sent)
                    || path.matches(&route.plain)
            })
    }

    /// Whether this must be such a request: by its route, or by all spellings of its path. For exceptions: a client
    /// must not take one by another spelling.
    pub(super) fn must_match(&self, route: &Route<'_>) -> bool {
        self.matches_method(&route.method)
            && self.path.as_ref().is_none_or(|path| {
                route.template.is_some_and(|template| path.matches(template))
                    || (path.matches(route.sent) && path.matches(&route.plain))
            })
    }

    /// `HEAD` counts as `GET`, because the handler of `GET` answers it.
    fn matches_method(&self, method: &Method) -> bool {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        self.methods.is_empty() || self.methods.contains(method)
    }

    /// The path and the method of a route that this pattern describes, for a table.
    pub(super) fn path(&self) -> Option<&str> {
        self.path.as_ref().map(|path| path.text.as_str())
    }

    pub(super) fn methods(&self) -> &[Method] {
        &self.methods
    }
}

impl Path {
    fn parse(text: &str) -> Result<Self, ConfigError> {
        let wrong = |why: &str| {
            ConfigError::new(format!(
                "the path `{}` {why}; write a route such as `/users/{{id}}` or `/files/{{*path}}`",
                text.escape_debug()
            ))
        };
        if !text.starts_with('/') {
            return Err(wrong("does not start with `/`"));
        }
        if text.split('/').any(|part| part == "*" || part.starts_with(':')) {
            return Err(wrong("has a parameter without braces"));
        }
        let mut routes = matchit::Router::new();
        routes.insert(text, ()).map_err(|error| wrong(&format!("is no route ({error})")))?;
        Ok(Self { text: text.to_owned(), routes })
    }

    fn matches(&self, path: &str) -> bool {
        self.text == path || self.routes.at(path).is_ok()
    }
}

fn method(name: &str) -> Result<Method, ConfigError> {
    let wrong = || {
        ConfigError::new(format!(
            "the method `{}` is unknown; write one such as `GET` or `POST`",
            name.escape_debug()
        ))
    };
    let method = Method::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
    match method {
        // A limit of `HEAD` alone would leave `GET` unlimited, which does the same work.
        Method::HEAD => Ok(Method::GET),
        _ if name.bytes().any(|byte| byte.is_ascii_lowercase()) => Err(wrong()),
        method => Ok(method),
    }
}

impl<'a> Route<'a> {
    pub(super) fn of(parts: &'a Parts) -> Self {
        let (template, sent) = (template(parts), sent(parts));
        Self { method: Cow::Borrowed(&parts.method), template, sent, plain: plain(sent) }
    }
}

#[cfg(feature = "axum")]
fn template(parts: &Parts) -> Option<&str> {
    parts.extensions.get::<axum::extract::MatchedPath>().map(axum::extract::MatchedPath::as_str)
}

#[cfg(not(feature = "axum"))]
const fn template(_: &Parts) -> Option<&str> {
    None
}

/// The path as it was sent: a router inside of another one sees the rest of it.
fn sent(parts: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return original.0.path();
    }
    parts.uri.path()
}

/// A path without the spellings that a router or a proxy behind may undo: percent-encoding, repeated slashes, dot segments,
/// a slash at the end. A limit applies to all of them: a client must not leave it by another spelling.
fn plain(path: &str) -> Cow<'_, str> {
    let is_plain = !path.contains('%')
        && !path.contains("//")
        && !path.contains("/.")
        && (path.len() == 1 || !path.ends_with('/'));
    if is_plain {
        return Cow::Borrowed(path);
    }
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    Cow::Owned(format!("/{}", segments.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(method: Method, path: &str) -> Route<'_> {
        Route { method: Cow::Owned(method), template: None, sent: path, plain: plain(path) }
    }

    fn routed<'a>(template: &'a str, path: &'a str) -> Route<'a> {
        Route { template: Some(template), ..sent(Method::GET, path) }
    }

    fn pattern(path: &str, methods: &[&str]) -> Pattern {
        let methods: Vec<_> = methods.iter().map(|&method| method.to_owned()).collect();
        Pattern::new(Some(path), &methods).unwrap()
    }

    #[test]
    fn limit_applies_to_all_spellings_of_a_path_and_an_exception_to_none() {
        let search = pattern("/search", &[]);
        for path in ["/search/", "//search", "/./search", "/a/../search", "/%73earch", "/search//"]
        {
            let route = sent(Method::GET, path);
            assert!(search.may_match(&route) && !search.must_match(&route), "{path}");
        }
        let route = sent(Method::GET, "/search");
        assert!(search.may_match(&route) && search.must_match(&route));
        for path in ["/", "/searches", "/search/x", "/Search", "/search%2Fx", "/search%00"] {
            let route = sent(Method::GET, path);
            assert!(!search.may_match(&route) && !search.must_match(&route), "{path}");
        }
    }

    #[test]
    fn parameters_match_as_in_the_router() {
        let user = pattern("/users/{id}", &[]);
        assert!(user.may_match(&sent(Method::GET, "/users/42")));
        assert!(!user.may_match(&sent(Method::GET, "/users/42/posts")));
        let route = routed("/users/{name}", "/users/42");
        for path in ["/users/{id}", "/users/{name}", "/users/42", "/{*all}"] {
            let pattern = pattern(path, &[]);
            assert!(pattern.may_match(&route) && pattern.must_match(&route), "{path}");
        }
        assert!(!pattern("/users/43", &[]).may_match(&route));
    }

    #[test]
    fn route_inside_of_another_router_has_its_whole_path() {
        let route = routed("/api/users/{id}", "/users/42");
        assert!(pattern("/api/users/{id}", &[]).must_match(&route));
    }

    #[test]
    fn path_through_a_wildcard_takes_no_exception_of_another_route() {
        let health = pattern("/health", &[]);
        for path in ["/files/../health", "/files/%2e%2e/health", "//health"] {
            let route = routed("/{*path}", path);
            assert!(!health.must_match(&route) && health.may_match(&route), "{path}");
        }
    }

    #[test]
    fn head_is_get() {
        let get = pattern("/a", &["GET"]);
        assert!(
            get.may_match(&sent(Method::HEAD, "/a")) && get.may_match(&sent(Method::GET, "/a"))
        );
        assert!(!get.may_match(&sent(Method::POST, "/a")));
        assert!(pattern("/a", &["HEAD"]).may_match(&sent(Method::GET, "/a")));
    }

    #[test]
    fn paths_and_methods_that_no_router_knows_are_errors() {
        for (path, why) in [
            ("search", "does not start with `/`"),
            ("/users/:id", "has a parameter without braces"),
            ("/files/*", "has a parameter without braces"),
            ("/users/{id", "is no route"),
            ("/{*all}/x", "is no route"),
        ] {
            let error = Pattern::new(Some(path), &[]).err().expect("an error").to_string();
            assert!(error.contains(why) && error.contains("write a route"), "{error}");
        }
        for method in ["get", "GE T", ""] {
            let error = Pattern::new(None, &[method.to_owned()]).err().expect("an error");
            assert!(error.to_string().contains("write one such as `GET`"), "{error}");
        }
    }
}
