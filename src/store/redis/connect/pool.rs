//! Connections of your pool.

use deadpool_redis::{Pool, PoolError};
use futures_core::future::BoxFuture;
use redis::aio::{ConnectionLike, MultiplexedConnection};

use super::super::call;
use super::super::greeting::{self, in_words};
use super::super::terms::Terms;
use super::{Connect, Link, Subscription};

impl Connect for Pool {
    fn connect<'a>(&'a self, terms: &'a Terms) -> BoxFuture<'a, Result<Link, String>> {
        Box::pin(async {
            let mut pooled = match self.get().await {
                Ok(pooled) => pooled,
                Err(PoolError::Backend(error)) => return Err(in_words(&error, &terms.prefix)),
                Err(error) => return Err(error.to_string()),
            };
            let greeted = greet(&mut pooled, terms).await;
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

    fn subscribe<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Option<Subscription>, String>> {
        Box::pin(async { Ok(None) })
    }

    fn has_channels(&self) -> bool {
        false
    }
}

/// Validates a connection that others had before. They may have left it on another database, where
/// this replica would count apart.
async fn greet(connection: &mut MultiplexedConnection, terms: &Terms) -> Result<(), String> {
    let mut select = redis::cmd("SELECT");
    select.arg(connection.get_db());
    // Where this command is unknown or forbidden, nobody has left the database.
    match select.query_async::<()>(connection).await {
        Err(error) if !call::is_of_server(&error) => Err(in_words(&error, &terms.prefix)),
        _ => greeting::greet(connection, terms).await,
    }
}
