//! Several futures at the same time, a limited number of them started.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A future without a name.
pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Runs futures, at most `limit` of them at the same time, until all have ended or one has failed. The others are then
/// dropped, which cancels their commands. Returns the results in order.
pub(crate) async fn together<T: Send + Unpin, E: Send + Unpin>(
    futures: impl Iterator<Item = Boxed<Result<T, E>>> + Send + Unpin,
    limit: usize,
) -> Result<Vec<T>, E> {
    Together { futures: futures.enumerate(), running: Vec::new(), ended: Vec::new(), limit: limit.max(1) }
        .await
}

struct Together<I, T, E> {
    futures: std::iter::Enumerate<I>,
    running: Vec<(usize, Boxed<Result<T, E>>)>,
    /// By the number of the future.
    ended: Vec<Option<T>>,
    limit: usize,
}

impl<I, T, E> Future for Together<I, T, E>
where
    I: Iterator<Item = Boxed<Result<T, E>>> + Unpin,
    T: Unpin,
    E: Unpin,
{
    type Output = Result<Vec<T>, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut index = 0;
        loop {
            if index == this.running.len() {
                if index == this.limit {
                    return Poll::Pending;
                }
                let Some(next) = this.futures.next() else { break };
                this.ended.push(None);
                this.running.push(next);
            }
            let Some((number, future)) = this.running.get_mut(index) else { break };
            match future.as_mut().poll(context) {
                Poll::Pending => index += 1,
                Poll::Ready(Ok(value)) => {
                    this.ended[*number] = Some(value);
                    drop(this.running.swap_remove(index));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        if this.running.is_empty() {
            return Poll::Ready(Ok(std::mem::take(&mut this.ended).into_iter().flatten().collect()));
        }
        Poll::Pending
    }
}
