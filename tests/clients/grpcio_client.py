"""Calls a limited method. The second call is denied, and so is the third, which grpcio retries.

python grpcio_client.py PORT
"""

import json
import sys

import grpc

# Without the server's pushback, grpcio would retry within 10 ms, and be denied until it gives up.
RETRY = {
    "maxAttempts": 2,
    "initialBackoff": "0.01s",
    "maxBackoff": "0.01s",
    "backoffMultiplier": 1,
    "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
}


def connect(port, policy):
    config = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": policy}]}) if policy else "{}"
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.service_config", config)])
    return channel.unary_unary("/grpc.health.v1.Health/Check")


def main(port):
    call = connect(port, None)
    call(b"")
    try:
        call(b"")
        sys.exit("the second call was not denied")
    except grpc.RpcError as error:
        metadata = dict(error.trailing_metadata())
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
        pushback = metadata["grpc-retry-pushback-ms"]
        print(f"grpcio {grpc.__version__}: {error.code().name}, pushback {pushback} ms")
    connect(port, RETRY)(b"")


main(sys.argv[1])
