//! The requests that a limit applies to, by method and route.

use std::borrow::Cow;

use http::Method;
use http::request::Parts;
use matchit::{InsertError, Router};
use percent_encoding::percent_decode_str;

use super::segments::{Segment, covers, segments};
use super::spellings::{is_plain, normalized, spellings};
use crate::http::path::original_path;
use crate::units::ConfigError;

/// The longest path, in bytes.
const LONGEST_PATH: usize = 1_024;

/// The most parameters of a path, because routers have bounds of their own.
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
    segments: Vec<Segment<'static>>,
    /// Finds the paths of this template alone.
    router: Router<()>,
    /// The same, of the template without what [`normalized`] removes. `None` if that is nothing.
    loose: Option<Router<()>>,
}

/// The parts of a request that patterns are compared with.
pub(in crate::http) struct RequestRoute<'a> {
    method: Cow<'a, Method>,
    /// The template of the route that the router matched. Different spellings of a path have one.
    template: Option<Vec<Segment<'a>>>,
    /// The path as it was sent.
    sent: Cow<'a, str>,
    /// `true` if every router and proxy reads the path as it is written, except for a slash at the
    /// end.
    is_plain: bool,
    /// The other paths that a router or a proxy may read in it. `None` if that may be any path,
    /// because the path is not plain, and too long to find out.
    spellings: Option<Vec<String>>,
}

impl Pattern {
    /// Parses a path in the syntax of Axum's router, and methods.
    ///
    /// An error comes with the name of its field.
    pub(super) fn new(
        path: Option<&str>,
        methods: &[String],
    ) -> Result<Self, (&'static str, ConfigError)> {
        let path = path
            .map(Path::parse)
            .transpose()
            .map_err(|error| ("path", error))?;
        let methods: Result<_, _> = methods.iter().map(|name| method(name)).collect();
        Ok(Self {
            path,
            methods: methods.map_err(|error| ("method", error))?,
        })
    }

    /// Returns whether this may be such a request, by its route, or by any spelling of its path.
    /// This is for limits, because a client must not leave one by another spelling.
    pub(super) fn may_match(&self, route: &RequestRoute<'_>) -> bool {
        self.matches_method(&route.method)
            && self.path.as_ref().is_none_or(|path| {
                let spellings = route.spellings.as_ref();
                spellings.is_none_or(|all| all.iter().any(|spelling| path.may_be_at(spelling)))
                    || path.covers(route)
                    || path.may_be_at(&route.sent)
            })
    }

    /// Returns whether this must be such a request, by its route, or by a path that has only one
    /// spelling. This is for exceptions, because a client must not take one by another
    /// spelling.
    pub(super) fn must_match(&self, route: &RequestRoute<'_>) -> bool {
        self.matches_method(&route.method)
            && self.path.as_ref().is_none_or(|path| {
                path.covers(route) || (route.is_plain && path.router.at(&route.sent).is_ok())
            })
    }

    /// `HEAD` counts as `GET`, because the handler of `GET` answers it.
    fn matches_method(&self, method: &Method) -> bool {
        let method = if method == Method::HEAD {
            &Method::GET
        } else {
            method
        };
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
        if text.len() > LONGEST_PATH {
            return Err(ConfigError::new(format!(
                "a path has {} bytes; use at most {LONGEST_PATH}",
                text.len()
            )));
        }
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
        let router = router(text).map_err(|error| wrong(&format!("is no route ({error})")))?;
        let decoded = percent_decode_str(text).decode_utf8_lossy();
        let loose = Some(normalized(&decoded)).filter(|loose| loose != text);
        let segments = segments(text).into_iter().map(Segment::into_owned);
        Ok(Self {
            text: text.to_owned(),
            segments: segments.collect(),
            router,
            loose: loose.and_then(|loose| self::router(&loose).ok()),
        })
    }

    /// Returns whether all paths of the route that the router matched are of this one.
    fn covers(&self, route: &RequestRoute<'_>) -> bool {
        route
            .template
            .as_ref()
            .is_some_and(|template| covers(&self.segments, template))
    }

    fn may_be_at(&self, path: &str) -> bool {
        let is_at = |router: &Router<()>| router.at(path).is_ok();
        is_at(&self.router) || self.loose.as_ref().is_some_and(is_at)
    }
}

/// The router of a template. Returns an error if Axum's router does not accept it.
fn router(template: &str) -> Result<Router<()>, InsertError> {
    let mut router = Router::new();
    router.insert(template, ())?;
    Ok(router)
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
        Method::HEAD => Err(ConfigError::new(
            "the method is `HEAD`; write `GET`, which means both",
        )),
        _ if !name
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte == b'-') =>
        {
            Err(wrong())
        }
        method => Ok(method),
    }
}

impl<'a> RequestRoute<'a> {
    pub(in crate::http) fn from_parts(parts: &'a Parts) -> Self {
        let route = Self::new(
            Cow::Borrowed(&parts.method),
            template(parts),
            original_path(parts),
        );
        let now = parts.uri.path();
        let sent = original_path(parts);
        match route.template {
            Some(_) => route,
            None if now == sent => route,
            None => route.also_at(now, is_rest_of(now, sent)),
        }
    }

    /// The requests of a method to a path, with the template of the route that the router matched.
    pub(super) fn new(method: Cow<'a, Method>, template: Option<&'a str>, sent: &'a str) -> Self {
        let is_plain = is_plain(sent);
        Self {
            method,
            template: template.map(segments),
            sent: with_slash(sent),
            is_plain,
            spellings: spellings(sent, is_plain),
        }
    }

    /// Adds a second path of the request: the rest that a nested router sees, or what an outer
    /// layer wrote.
    fn also_at(mut self, path: &str, is_rest: bool) -> Self {
        let is_plain = is_plain(path);
        let more = spellings(path, is_plain);
        self.is_plain &= is_rest && more.is_some();
        self.spellings = self.spellings.zip(more).map(|(mut all, more)| {
            all.push(with_slash(path).into_owned());
            all.extend(more);
            all
        });
        self
    }
}

/// The path `*` of an `OPTIONS` request, and the path of a `CONNECT` request, have no slash.
fn with_slash(path: &str) -> Cow<'_, str> {
    match path.starts_with('/') {
        true => Cow::Borrowed(path),
        false => Cow::Owned(format!("/{path}")),
    }
}

/// Returns whether `path` may be what a nested router sees of `whole`.
fn is_rest_of(path: &str, whole: &str) -> bool {
    path.starts_with('/') && (path == "/" || whole.ends_with(path))
}

#[cfg(feature = "axum")]
fn template(parts: &Parts) -> Option<&str> {
    parts
        .extensions
        .get::<axum::extract::MatchedPath>()
        .map(axum::extract::MatchedPath::as_str)
}

#[cfg(not(feature = "axum"))]
const fn template(_: &Parts) -> Option<&str> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(method: Method, path: &str) -> RequestRoute<'_> {
        RequestRoute::new(Cow::Owned(method), None, path)
    }

    fn routed<'a>(template: &'a str, path: &'a str) -> RequestRoute<'a> {
        RequestRoute::new(Cow::Owned(Method::GET), Some(template), path)
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
            assert!(
                search.may_match(&route) && !search.must_match(&route),
                "{path}"
            );
        }
        let route = sent(Method::GET, "/search");
        assert!(search.may_match(&route) && search.must_match(&route));
        for path in [
            "/",
            "/searches",
            "/search/x",
            "/Search",
            "/search%2Fx",
            "/search%00",
        ] {
            let route = sent(Method::GET, path);
            assert!(
                !search.may_match(&route) && !search.must_match(&route),
                "{path}"
            );
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
        let search = pattern("/search/", &[]);
        let cafe = pattern("/caf%C3%A9", &[]);
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
            assert!(
                pattern.may_match(&route) && pattern.must_match(&route),
                "{path}"
            );
        }
        assert!(!pattern("/users/43", &[]).may_match(&route));
        // A parameter of one segment is not the rest of a path.
        let rest = routed("/{tenant}/{*rest}", "/acme/x/y");
        for path in ["/{a}/{b}", "/{a}/x", "/{a}/{b}/{c}/{d}"] {
            let pattern = pattern(path, &[]);
            assert!(
                !pattern.may_match(&rest) && !pattern.must_match(&rest),
                "{path}"
            );
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
        for path in [
            "/files/../health",
            "/files/%2e%2e/health",
            "//health",
            "/health;x",
        ] {
            let route = routed("/{*path}", path);
            assert!(
                !health.must_match(&route) && health.may_match(&route),
                "{path}"
            );
        }
        let public = pattern("/public/{*path}", &[]);
        for path in [
            "/public/../admin",
            "/public/..;/admin",
            "/public/%252e%252e/admin",
        ] {
            assert!(!public.must_match(&sent(Method::GET, path)), "{path}");
        }
        assert!(public.must_match(&sent(Method::GET, "/public/.well-known/a..b")));
    }

    #[test]
    fn exception_of_a_parameter_leaves_out_the_route_without_it() {
        for (path, template) in [
            ("/users/{id}", "/users/"),
            ("/public/{*path}", "/public/"),
            ("/{{x}}", "/{id}"),
        ] {
            let exception = pattern(path, &[]);
            let route = routed(
                template,
                if template == "/{id}" {
                    "/users"
                } else {
                    template
                },
            );
            assert!(!exception.must_match(&route), "{path} {template}");
        }
        assert!(pattern("/{{x}}", &[]).must_match(&routed("/{{x}}", "/{x}")));
    }

    #[test]
    fn odd_path_that_is_too_long_to_spell_is_under_every_limit_and_no_exception() {
        let path = format!("/{}", ";".repeat(60_000));
        let route = sent(Method::GET, &path);
        for text in ["/search", "/users/{id}", "/{*all}"] {
            let pattern = pattern(text, &[]);
            assert!(
                pattern.may_match(&route) && !pattern.must_match(&route),
                "{text}"
            );
        }
        // A plain path has one spelling, however long it is.
        let path = format!("/{}", "a".repeat(60_000));
        let route = sent(Method::GET, &path);
        assert!(!pattern("/search", &[]).may_match(&route));
        assert!(pattern("/{x}", &[]).must_match(&route));
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
        let long = format!("/{}", "a".repeat(66_000));
        let (_, error) = Pattern::new(Some(&long), &[]).err().expect("an error");
        assert_eq!(
            error.to_string(),
            "a path has 66001 bytes; use at most 1024"
        );
        for method in ["get", "GE T", "", "*", "GET|POST", "GET,POST"] {
            let (field, error) = Pattern::new(None, &[method.to_owned()])
                .err()
                .expect("an error");
            assert!(
                field == "method" && error.to_string().contains("write one such as `GET`"),
                "{error}"
            );
        }
        // An exception of `HEAD` would be one of `GET`.
        let (_, error) = Pattern::new(None, &["HEAD".to_owned()])
            .err()
            .expect("an error");
        assert!(
            error.to_string().contains("write `GET`, which means both"),
            "{error}"
        );
    }
}
