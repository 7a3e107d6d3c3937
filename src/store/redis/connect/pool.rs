//! Connections of a pool of the application.

use deadpool_redis::{Pool, PoolError};

use super::super::greeting::{self, in_words};
use super::super::terms::Terms;
use super::Subscribing;
use super::{Connect, Connecting, Link};

pub(in crate::store::redis) struct Pooled(pub(in crate::store::redis) Pool);

impl Connect for Pooled {
    fn connect<'a>(&'a self, terms: &'a Terms) -> Connecting<'a> {
        Box::pin(async {
            let mut pooled = match self.0.get().await {
                Ok(pooled) => pooled,
                Err(PoolError::Backend(error)) => return Err(in_words(&error, &terms.prefix)),
                Err(error) => return Err(error.to_string()),
            };
            let greeted = greeting::greet(&mut pooled, terms).await;
            let link = Link::Pooled(pooled);
            match greeted {
                Ok(()) => Ok(link),
                Err(reason) => {
                    link.close();
                    Err(reason)
                }
            }
        })
    }

    fn subscribe<'a>(&'a self, _: &'a str, _: &'a str) -> Subscribing<'a> {
        Box::pin(async { Ok(None) })
    }

    fn has_channels(&self) -> bool {
        false
    }
}
