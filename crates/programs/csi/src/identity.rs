//! Who the driver is, and whether it can work.

use tonic::Status;

use crate::csi_v1::plugin_capability::service::Type as Service;
use crate::csi_v1::plugin_capability::volume_expansion::Type as Expansion;
use crate::csi_v1::plugin_capability::{self, VolumeExpansion};
use crate::csi_v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};
use crate::services::Services;

pub(crate) fn plugin_info(
    services: &Services,
    _: GetPluginInfoRequest,
) -> Result<GetPluginInfoResponse, Status> {
    Ok(GetPluginInfoResponse {
        name: services.driver_name.clone(),
        vendor_version: env!("CARGO_PKG_VERSION").into(),
        manifest: Default::default(),
    })
}

pub(crate) fn capabilities(
    services: &Services,
    _: GetPluginCapabilitiesRequest,
) -> Result<GetPluginCapabilitiesResponse, Status> {
    let service =
        |kind: Service| plugin_capability::Type::Service(plugin_capability::Service { r#type: kind.into() });
    let mut types = Vec::new();
    if services.controller.is_some() {
        types.push(service(Service::ControllerService));
        let online = VolumeExpansion { r#type: Expansion::Online.into() };
        types.push(plugin_capability::Type::VolumeExpansion(online));
    }
    if services.has_topology {
        types.push(service(Service::VolumeAccessibilityConstraints));
    }
    let capabilities = types.into_iter().map(|kind| PluginCapability { r#type: Some(kind) }).collect();
    Ok(GetPluginCapabilitiesResponse { capabilities })
}

/// Not ready until the target has answered once, and the kernel can connect: callers wait for that before they ask what the driver can
/// do. Ready from then on: a restart of the driver, which is what probes lead to, would not bring a target back.
pub(crate) fn probe(services: &Services, _: ProbeRequest) -> Result<ProbeResponse, Status> {
    let problem = services.problem();
    if let Some(problem) = &problem {
        tracing::warn!(%problem, "driver is not ready");
    }
    Ok(ProbeResponse { ready: Some(problem.is_none()) })
}
