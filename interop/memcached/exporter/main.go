// A Prometheus exporter of all statistics of a memcached server: a metric for each number that the client library of
// memcached_exporter reads. It collects them once, as for a scrape, and prints them. The registry refuses a metric that
// comes twice: as in memcached_exporter, what `stats items` and `stats slabs` say of a slab class are metrics of one kind.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/grobie/gomemcache/memcache"
	"github.com/prometheus/client_golang/prometheus"
)

type exporter struct{ client *memcache.Client }

// Describe leaves the metrics to Collect: which there are depends on the server.
func (exporter) Describe(chan<- *prometheus.Desc) {}

// Collect reads the statistics of the server.
func (e exporter) Collect(metrics chan<- prometheus.Metric) {
	fail := func(err error) {
		metrics <- prometheus.NewInvalidMetric(prometheus.NewDesc("memcached_up", "Whether it answers.", nil, nil), err)
	}
	gauge := func(kind, field, text string, labels, values []string) {
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return
		}
		desc := prometheus.NewDesc("memcached_"+kind+field, "A field of stats.", labels, nil)
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, values...)
	}
	stats, err := e.client.Stats()
	if err != nil {
		fail(err)
		return
	}
	settings, err := e.client.StatsSettings()
	if err != nil {
		fail(err)
		return
	}
	for _, server := range stats {
		for field, text := range server.Stats {
			gauge("", field, text, nil, nil)
		}
		for _, classes := range []map[int]map[string]string{server.Items, server.Slabs} {
			for class, fields := range classes {
				for field, text := range fields {
					gauge("slab_", field, text, []string{"slab"}, []string{strconv.Itoa(class)})
				}
			}
		}
	}
	for _, server := range settings {
		for field, text := range server {
			gauge("settings_", field, text, nil, nil)
		}
	}
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	client, err := memcache.New(os.Args[1])
	exitOn(err)
	client.Timeout = 20 * time.Second
	registry := prometheus.NewRegistry()
	registry.MustRegister(exporter{client})
	families, err := registry.Gather()
	exitOn(err)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			fmt.Printf("%s", family.GetName())
			for _, label := range metric.GetLabel() {
				fmt.Printf("{%s=%q}", label.GetName(), label.GetValue())
			}
			fmt.Printf(" %.0f\n", metric.GetGauge().GetValue())
		}
	}
}
