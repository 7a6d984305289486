{{- /* What all pods have in common. */ -}}
{{- define "lapse.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Arguments as those of lapse.volumes, and further variables. Java does not heed HOME. */ -}}
{{- define "lapse.container" -}}
{{- $suffix := index . 1 }}{{ $more := slice . 2 }}{{ with index . 0 -}}
image: {{ include "lapse.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
workingDir: /tmp
env:
  - name: KAFKA_BOOTSTRAP_SERVERS
    value: {{ .Values.kafka.bootstrapServers | quote }}
  - name: HOME
    value: /tmp
  {{- if include "lapse.kafkaSecret" . }}
  - name: LAPSE_SASL_PASSWORD
    valueFrom:
      secretKeyRef: {name: {{ include "lapse.kafkaSecret" . }}{{ if not .Values.kafka.existingSecret }}{{ $suffix }}{{ end }}, key: password, optional: true}
  {{- end }}
  {{- if or .Values.kafka.clientProperties (and .Values.kafka.existingSecret .Values.kafka.existingSecretHasClientProperties) }}
  - name: LAPSE_KAFKA_CONFIG
    value: /etc/lapse/kafka/client.properties
  {{- end }}
  {{- range $more }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "lapse.mounts" -}}
- {name: config, mountPath: /etc/lapse/lapse.toml, subPath: lapse.toml, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if include "lapse.kafkaSecret" . }}
- {name: kafka, mountPath: /etc/lapse/kafka, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Arguments: the root context, and what is put behind the names of the ConfigMap and of the Secret. */ -}}
{{- define "lapse.volumes" -}}
{{- $root := index . 0 }}{{ $suffix := index . 1 -}}
- name: config
  configMap: {name: {{ include "lapse.name" $root }}{{ $suffix }}}
- name: tmp
  emptyDir: {}
{{- with include "lapse.kafkaSecret" $root }}
- name: kafka
  secret: {secretName: {{ . }}{{ if not $root.Values.kafka.existingSecret }}{{ $suffix }}{{ end }}, defaultMode: 0440}
{{- end }}
{{- with $root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "lapse.probe" -}}
httpGet: {path: {{ index . 0 }}, port: {{ index . 1 }}}
{{ toYaml (index . 2) }}
{{- end }}

{{- /* A hook runs before the objects of the release are there. */ -}}
{{- define "lapse.hook" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
