//! The requests that a limit applies to: by method and route.

use std::borrow::Cow;

use http::Method;
use http::request::Parts;
use percent_encoding::percent_decode_str;

use super::spellings::{is_plain, normalized, spellings};
use crate::nouns::ConfigError;

/// The most parameters of a path: routers have bounds of their own.
const MOST_PARAMETERS: usize = 16;

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
    exact: matchit::Router<()>,
    /// The path without what [`normalized`] removes. `None` if that is nothing.
    loose: Option<matchit::Router<()>>,
}

/// What patterns are compared with.
pub(in crate::http) struct Route<'a> {
    pub(super) method: Cow<'a, Method>,
    /// The template of the route that the router matched. Different spellings of a path have one.
    pub(super) template: Option<&'a str>,
    /// The path as it was sent.
    pub(super) sent: &'a str,
    /// What another part of the service may take the path for, if that can be another one.
    pub(super) spellings: Vec<String>,
}

impl Pattern {
    /// Parses a path in the syntax of Axum's router, and methods.
    ///
    /// An error comes with the name of its field.
    pub(super) fn new(
        path: Option<&str>,
        methods: &[String],
    ) -> Result<Self, (&'static str, ConfigError)> {
        let path = path.map(Path::parse).transpose().map_err(|error| ("path", error))?;
        let methods: Result<_, _> = methods.iter().map(|name| method(name)).collect();
        Ok(Self { path, methods: methods.map_err(|error| ("method", error))? })
    }

    /// Whether this may be such a request: by its route, or by any spelling of its path. For limits: a client must not
    /// leave one by another spelling.
    pub(super) fn may_match(&self, route: &Route<'_>) -> bool {
        self.matches_method(&route.method)
            && self.path.as_ref().is_none_or(|path| {
                route.template.is_some_and(|template| path.covers(template))
                    || path.may_be_at(route.sent)
                    || route.spellings.iter().any(|spelling| path.may_be_at(spelling))
            })
    }

    /// Whether this must be such a request: by its route, or by a path that has only one spelling. For exceptions: a
    /// client must not take one by another spelling.
    pub(super) fn must_match(&self, route: &Route<'_>) -> bool {
        self.matches_method(&route.method)
            && self.path.as_ref().is_none_or(|path| {
                route.template.is_some_and(|template| path.covers(template))
                    || (is_plain(route.sent) && path.is_at(route.sent))
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
        if text.split('/').any(|part| part.starts_with(['*', ':'])) {
            return Err(wrong("has a parameter without braces"));
        }
        if text.contains(['?', '#']) {
            return Err(wrong("has a query"));
        }
        if text.matches('{').count() > MOST_PARAMETERS {
            return Err(wrong("has more than 16 parameters"));
        }
        if text.contains("//") || text.split('/').any(|part| part == "." || part == "..") {
            return Err(wrong("has a segment that no route has"));
        }
        let exact = router(text).map_err(|error| wrong(&format!("is no route ({error})")))?;
        let decoded = percent_decode_str(text).decode_utf8_lossy();
        let loose = Some(normalized(&decoded)).filter(|loose| loose != text);
        let loose = loose.and_then(|loose| router(&loose).ok());
        Ok(Self { text: text.to_owned(), exact, loose })
    }

    /// Whether all paths of a template are of this one.
    fn covers(&self, template: &str) -> bool {
        let is_rest = |segment: &str| segment.starts_with("{*");
        let is_parameter = |segment: &str| segment.starts_with('{') && segment.ends_with('}');
        let (mut own, mut theirs) = (self.text.split('/'), template.split('/'));
        loop {
            match (own.next(), theirs.next()) {
                (None, None) => return true,
                (Some(own), Some(_)) if is_rest(own) => return true,
                (Some(own), Some(theirs)) if own == theirs => {}
                (Some(own), Some(theirs)) if is_parameter(own) && !is_rest(theirs) => {}
                _ => return false,
            }
        }
    }

    fn is_at(&self, path: &str) -> bool {
        self.exact.at(path).is_ok()
    }

    fn may_be_at(&self, path: &str) -> bool {
        self.is_at(path) || self.loose.as_ref().is_some_and(|loose| loose.at(path).is_ok())
    }
}

fn router(path: &str) -> Result<matchit::Router<()>, matchit::InsertError> {
    let mut routes = matchit::Router::new();
    routes.insert(path, ()).map(|()| routes)
}

fn method(name: &str) -> Result<Method, ConfigError> {
    let wrong = || {
        ConfigError::new(format!(
            "the method `{}` is unknown; write one such as `GET` or `POST`",
            name.escape_debug()
        ))
    };
    match Method::from_bytes(name.as_bytes()).map_err(|_| wrong())? {
        // A limit of `HEAD` alone would leave `GET` unlimited, which does the same work.
        Method::HEAD => {
            Err(ConfigError::new("the method is `HEAD`; write `GET`, which means both"))
        }
        _ if !name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-') => Err(wrong()),
        method => Ok(method),
    }
}

impl<'a> Route<'a> {
    pub(in crate::http) fn of(parts: &'a Parts) -> Self {
        let (template, sent) = (template(parts), sent(parts));
        let mut spellings = spellings(sent);
        // A layer outside may have rewritten the path.
        let now = parts.uri.path();
        if template.is_none() && now != sent {
            spellings.push(now.to_owned());
            spellings.extend(super::spellings::spellings(now));
        }
        Self { method: Cow::Borrowed(&parts.method), template, sent, spellings }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(method: Method, path: &str) -> Route<'_> {
        Route { method: Cow::Owned(method), template: None, sent: path, spellings: spellings(path) }
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
        for path in [
            "/search/",
            "//search",
            "/./search",
            "/a/../search",
            "/%73earch",
            "/search//",
            "/%2573earch",
            "/search;x=1",
            "/x;y/../search;",
            "/%2e%2e/search%2F",
            "\\search",
        ] {
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
        // The service behind may split a segment at an encoded slash, or not.
        for path in ["/users/4%2F2/", "//users/4%2F2", "/users/4%2F2"] {
            assert!(user.may_match(&sent(Method::GET, path)), "{path}");
        }
        assert!(pattern("/x/a/b", &[]).may_match(&sent(Method::GET, "/x//../a/b")));
        let (search, cafe) = (pattern("/search/", &[]), pattern("/caf%C3%A9", &[]));
        for path in ["/search/", "/search", "//search/", "/%73earch/"] {
            assert!(search.may_match(&sent(Method::GET, path)), "{path}");
        }
        assert!(search.must_match(&sent(Method::GET, "/search/")));
        for path in ["/caf%C3%A9", "/caf%c3%a9", "/café"] {
            assert!(cafe.may_match(&sent(Method::GET, path)), "{path}");
        }
        let route = routed("/users/{name}", "/users/42");
        for path in ["/users/{id}", "/users/{name}", "/users/42", "/{*all}"] {
            let pattern = pattern(path, &[]);
            assert!(pattern.may_match(&route) && pattern.must_match(&route), "{path}");
        }
        assert!(!pattern("/users/43", &[]).may_match(&route));
        // A parameter of one segment is no rest of a path.
        let rest = routed("/{tenant}/{*rest}", "/acme/x/y");
        for path in ["/{a}/{b}", "/{a}/x", "/{a}/{b}/{c}/{d}"] {
            let pattern = pattern(path, &[]);
            assert!(!pattern.may_match(&rest) && !pattern.must_match(&rest), "{path}");
        }
        assert!(pattern("/{a}/{*b}", &[]).must_match(&rest));
        assert!(pattern("/{a}/{b}/{c}", &[]).may_match(&rest));
    }

    #[test]
    fn route_inside_of_another_router_has_its_whole_path() {
        let route = routed("/api/users/{id}", "/users/42");
        let pattern = pattern("/api/users/{id}", &[]);
        assert!(pattern.must_match(&route) && pattern.may_match(&route));
    }

    #[test]
    fn path_through_a_wildcard_takes_no_exception_of_another_route() {
        let health = pattern("/health", &[]);
        for path in ["/files/../health", "/files/%2e%2e/health", "//health", "/health;x"] {
            let route = routed("/{*path}", path);
            assert!(!health.must_match(&route) && health.may_match(&route), "{path}");
        }
        let public = pattern("/public/{*path}", &[]);
        for path in ["/public/../admin", "/public/..;/admin", "/public/%252e%252e/admin"] {
            assert!(!public.must_match(&sent(Method::GET, path)), "{path}");
        }
        assert!(public.must_match(&sent(Method::GET, "/public/.well-known/a..b")));
    }

    #[test]
    fn head_is_get() {
        let get = pattern("/a", &["GET"]);
        assert!(
            get.may_match(&sent(Method::HEAD, "/a")) && get.may_match(&sent(Method::GET, "/a"))
        );
        assert!(!get.may_match(&sent(Method::POST, "/a")));
    }

    #[test]
    fn paths_and_methods_that_no_router_knows_are_errors() {
        for (path, why) in [
            ("search", "does not start with `/`"),
            ("/users/:id", "has a parameter without braces"),
            ("/files/*", "has a parameter without braces"),
            ("/users/{id", "is no route"),
            ("/{*all}/x", "is no route"),
            ("/search/*rest", "has a parameter without braces"),
            ("/search?q=x", "has a query"),
            ("/a/../b", "has a segment that no route has"),
            ("/a//b", "has a segment that no route has"),
            (&"/{a}".repeat(30), "has more than 16 parameters"),
        ] {
            let (field, error) = Pattern::new(Some(path), &[]).err().expect("an error");
            let error = error.to_string();
            assert!(
                field == "path" && error.contains(why) && error.contains("write a route"),
                "{error}"
            );
        }
        for method in ["get", "GE T", "", "*", "GET|POST", "GET,POST"] {
            let (field, error) = Pattern::new(None, &[method.to_owned()]).err().expect("an error");
            assert!(
                field == "method" && error.to_string().contains("write one such as `GET`"),
                "{error}"
            );
        }
        // An exception of `HEAD` would be one of `GET`.
        let (_, error) = Pattern::new(None, &["HEAD".to_owned()]).err().expect("an error");
        assert!(error.to_string().contains("write `GET`, which means both"), "{error}");
    }
}
