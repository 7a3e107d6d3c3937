//! The layer: requests, responses, headers, routers, servers, gRPC, and attacks on it.

mod cors;
mod grpc;
mod headers;
mod hyper;
mod inner_service;
mod layer;
mod layer_order;
mod response_bodies;
mod responses;
mod routing;
mod security;
mod server;
mod silent_mistakes;
mod stacked_layers;
mod tonic;

#[path = "../support/mod.rs"]
mod support;
