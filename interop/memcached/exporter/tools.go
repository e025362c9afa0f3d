//go:build tools

// The version of memcached_exporter that is built beside the program of this directory.
package main

import _ "github.com/prometheus/memcached_exporter/cmd/memcached_exporter"
