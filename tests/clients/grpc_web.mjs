// Calls a limited method over gRPC-Web. The second call is denied, and the third waits as its status says.
//
// node grpc_web.mjs PORT

import { readFileSync } from "node:fs";
import { create, createFileRegistry } from "@bufbuild/protobuf";
import { DurationSchema, FileDescriptorProtoSchema } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";

const { dependencies } = JSON.parse(readFileSync(new URL("package.json", import.meta.url)));

// As protoc would write them: the health service, and the part of a status that says when to retry.
const health = create(FileDescriptorProtoSchema, {
  name: "health.proto",
  package: "grpc.health.v1",
  syntax: "proto3",
  messageType: [{ name: "Empty" }],
  service: [{
    name: "Health",
    method: [{ name: "Check", inputType: ".grpc.health.v1.Empty", outputType: ".grpc.health.v1.Empty" }],
  }],
});
const details = create(FileDescriptorProtoSchema, {
  name: "error_details.proto",
  package: "google.rpc",
  syntax: "proto3",
  dependency: ["google/protobuf/duration.proto"],
  messageType: [{
    name: "RetryInfo",
    field: [{
      name: "retry_delay", jsonName: "retryDelay", number: 1, label: 1, type: 11,
      typeName: ".google.protobuf.Duration",
    }],
  }],
});
const wellKnown = (name) => (name === DurationSchema.file.proto.name ? DurationSchema.file : undefined);
const service = createFileRegistry(health, wellKnown).getService("grpc.health.v1.Health");
const retryInfo = createFileRegistry(details, wellKnown).getMessage("google.rpc.RetryInfo");

const transport = createGrpcWebTransport({ baseUrl: `http://127.0.0.1:${process.argv[2]}` });
const client = createClient(service, transport);
await client.check({});
const denial = await client.check({}).then(() => undefined, ConnectError.from);
if (denial?.code !== Code.ResourceExhausted) throw denial ?? new Error("the second call was not denied");
const [{ retryDelay }] = denial.findDetails(retryInfo);
const seconds = Number(retryDelay.seconds);
if (denial.metadata.get("retry-after") !== String(seconds)) throw denial;
const version = dependencies["@connectrpc/connect-web"];
console.log(`connect-web ${version}: ${denial.message}, RetryInfo ${seconds} s`);
await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
await client.check({});
