//! Connections of your pool.

use deadpool_redis::{Pool, PoolError};
use redis::aio::{ConnectionLike, MultiplexedConnection};

use super::super::call;
use super::super::greeting::{self, in_words};
use super::super::terms::Terms;
use super::Link;

pub(super) async fn connect(pool: &Pool, terms: &Terms) -> Result<Link, String> {
    let mut pooled = match pool.get().await {
        Ok(pooled) => pooled,
        Err(PoolError::Backend(error)) => return Err(in_words(&error, &terms.prefix)),
        Err(error) => return Err(error.to_string()),
    };
    let greeted = greet(&mut pooled, terms).await;
    let mut link = Link::new(MultiplexedConnection::clone(&pooled));
    link.pooled = Some(pooled);
    match greeted {
        Ok(()) => Ok(link),
        Err(reason) => {
            link.close();
            Err(reason)
        }
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
