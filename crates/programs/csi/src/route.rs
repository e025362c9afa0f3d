//! From a request's path to the method of a service: one table, in place of generated code.
//!
//! Methods wait for the target, for the kernel and for programs, so each runs on a thread of the runtime's pool.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Request, Response};
use prost::Message;
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::controller::Controller;
use crate::identity;
use crate::node::Node;
use crate::services::Services;

/// Limit of a request, bytes: far above what the interface's specification allows in all fields together.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// The service of all methods.
#[derive(Clone)]
pub(crate) struct Router(pub(crate) Arc<Services>);

type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

impl Service<Request<Body>> for Router {
    type Response = Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = self.route(request);
        Box::pin(async { Ok(answer.await) })
    }
}

/// Names the method of a service that this process may not have.
macro_rules! of {
    ($part:ident, $method:path) => {
        |services, request| match &services.$part {
            Some($part) => $method($part, request),
            None => Err(Status::unimplemented(concat!("--mode: this process is no ", stringify!($part)))),
        }
    };
}

impl Router {
    fn route(&self, request: Request<Body>) -> Answer {
        let path = request.uri().path().to_owned();
        let Some((service, method)) = path.strip_prefix("/csi.v1.").and_then(|rest| rest.split_once('/'))
        else {
            return unimplemented(&path);
        };
        match (service, method) {
            ("Identity", "GetPluginInfo") => self.unary(method, request, identity::plugin_info),
            ("Identity", "GetPluginCapabilities") => self.unary(method, request, identity::capabilities),
            ("Identity", "Probe") => self.unary(method, request, identity::probe),
            ("Controller", "ControllerGetCapabilities") => {
                self.unary(method, request, of!(controller, Controller::capabilities))
            }
            ("Controller", "CreateVolume") => {
                self.unary(method, request, of!(controller, Controller::create_volume))
            }
            ("Controller", "DeleteVolume") => {
                self.unary(method, request, of!(controller, Controller::delete_volume))
            }
            ("Controller", "ControllerPublishVolume") => {
                self.unary(method, request, of!(controller, Controller::publish))
            }
            ("Controller", "ControllerUnpublishVolume") => {
                self.unary(method, request, of!(controller, Controller::unpublish))
            }
            ("Controller", "ValidateVolumeCapabilities") => {
                self.unary(method, request, of!(controller, Controller::validate))
            }
            ("Controller", "ListVolumes") => {
                self.unary(method, request, of!(controller, Controller::list_volumes))
            }
            ("Controller", "GetCapacity") => {
                self.unary(method, request, of!(controller, Controller::capacity))
            }
            ("Controller", "CreateSnapshot") => {
                self.unary(method, request, of!(controller, Controller::create_snapshot))
            }
            ("Controller", "DeleteSnapshot") => {
                self.unary(method, request, of!(controller, Controller::delete_snapshot))
            }
            ("Controller", "ListSnapshots") => {
                self.unary(method, request, of!(controller, Controller::list_snapshots))
            }
            ("Controller", "GetSnapshot") => {
                self.unary(method, request, of!(controller, Controller::get_snapshot))
            }
            ("Controller", "ControllerExpandVolume") => {
                self.unary(method, request, of!(controller, Controller::expand_volume))
            }
            ("Controller", "ControllerGetVolume") => {
                self.unary(method, request, of!(controller, Controller::get_volume))
            }
            ("Node", "NodeGetCapabilities") => self.unary(method, request, of!(node, Node::capabilities)),
            ("Node", "NodeGetInfo") => self.unary(method, request, of!(node, Node::info)),
            ("Node", "NodeStageVolume") => self.unary(method, request, of!(node, Node::stage)),
            ("Node", "NodeUnstageVolume") => self.unary(method, request, of!(node, Node::unstage)),
            ("Node", "NodePublishVolume") => self.unary(method, request, of!(node, Node::publish)),
            ("Node", "NodeUnpublishVolume") => self.unary(method, request, of!(node, Node::unpublish)),
            ("Node", "NodeGetVolumeStats") => self.unary(method, request, of!(node, Node::stats)),
            ("Node", "NodeExpandVolume") => self.unary(method, request, of!(node, Node::expand)),
            _ => unimplemented(&path),
        }
    }

    fn unary<Q, R>(&self, name: &str, request: Request<Body>, method: Method<Q, R>) -> Answer
    where
        Q: Message + Default + Send + 'static,
        R: Message + Default + Send + 'static,
    {
        let mut grpc = tonic::server::Grpc::new(ProstCodec::<R, Q>::default())
            .max_decoding_message_size(REQUEST_BYTES_MAX)
            .max_encoding_message_size(usize::MAX);
        let call = Unary { services: Arc::clone(&self.0), name: name.to_owned(), method };
        Box::pin(async move { grpc.unary(call, request).await })
    }
}

fn unimplemented(path: &str) -> Answer {
    let response = Status::unimplemented(format!("no method {path}")).into_http();
    Box::pin(async { response })
}

type Method<Q, R> = fn(&Services, Q) -> Result<R, Status>;

/// One method.
struct Unary<Q, R> {
    services: Arc<Services>,
    name: String,
    method: Method<Q, R>,
}

impl<Q, R> tonic::server::UnaryService<Q> for Unary<Q, R>
where
    Q: Send + 'static,
    R: Send + 'static,
{
    type Response = R;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<R>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        let (services, method, name) = (Arc::clone(&self.services), self.method, self.name.clone());
        let work = move || {
            let start = Instant::now();
            let answer = method(&services, request.into_inner());
            report(&name, answer.as_ref().err(), start);
            answer
        };
        Box::pin(async {
            let worked = tokio::task::spawn_blocking(work).await;
            let answer = worked.unwrap_or_else(|_| Err(Status::internal("the driver failed: see its log")));
            answer.map(tonic::Response::new)
        })
    }
}

/// Logs how a call ended. Requests are left out: they have secrets.
fn report(method: &str, refusal: Option<&Status>, start: Instant) {
    let ms = start.elapsed().as_millis();
    match refusal {
        None => tracing::debug!(method, ms, "call answered"),
        Some(status) if matches!(status.code(), Code::Internal | Code::Unavailable) => {
            tracing::error!(method, ms, code = ?status.code(), "call failed: {}", status.message());
        }
        Some(status) => {
            tracing::info!(method, ms, code = ?status.code(), "call refused: {}", status.message());
        }
    }
}
