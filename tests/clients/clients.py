"""Each client sends two requests. The second is denied, and the client's retry after the wait is allowed.

python clients.py URL
"""

import sys
from importlib.metadata import version

import httpx
import httpx_retries
import requests
import urllib3
from requests.adapters import HTTPAdapter


def with_urllib3(url, headers):
    pool = urllib3.PoolManager(retries=urllib3.Retry(total=1))
    return pool.request("GET", url, headers=headers).status


def with_requests(url, headers):
    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=urllib3.Retry(total=1)))
    return session.get(url, headers=headers).status_code


def with_httpx_retries(url, headers):
    transport = httpx_retries.RetryTransport(retry=httpx_retries.Retry(total=1))
    with httpx.Client(transport=transport) as client:
        return client.get(url, headers=headers).status_code


def main(url):
    clients = {"urllib3": with_urllib3, "requests": with_requests, "httpx-retries": with_httpx_retries}
    for name, send in clients.items():
        headers = {"x-client": name}
        requests.get(url + "/default", headers=headers)
        status = send(url + "/default", headers)
        assert status == 200, (name, status)
        print(name, version(name))


main(sys.argv[1])
