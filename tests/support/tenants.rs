//! Requests of tenants, and a concurrency limit for them.

use axum::body::Body;
use http::Request;
use tollgate::Limit;
use tollgate::key::Header;

pub fn exports(limit: u32) -> Limit {
    Limit::concurrency("exports", limit).unwrap()
}

pub fn tenant() -> Header {
    Header::new("x-tenant").unwrap()
}

pub fn of(tenant: &str) -> Request<Body> {
    Request::get("/")
        .header("x-tenant", tenant)
        .body(Body::empty())
        .unwrap()
}
